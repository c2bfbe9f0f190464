-- What CREATE EXTENSION makes: the contract's columns, comments, rights and flags.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
create temp view members as
  select classid, objid from pg_depend
  where refclassid = 'pg_extension'::regclass and deptype = 'e'
    and refobjid = (select oid from pg_extension where extname = 'lease_lock');
create temp view relations as
  select c.* from pg_class c join members m on m.classid = 'pg_class'::regclass and m.objid = c.oid;
create temp view functions as
  select p.* from pg_proc p join members m on m.classid = 'pg_proc'::regclass and m.objid = p.oid;

-- 1. The functions, their arguments, results and flags.
select p.proname, pg_get_function_arguments(p.oid) as arguments, pg_get_function_result(p.oid) as result
  from functions p order by p.proname collate "C";
select proname, provolatile, proparallel, proisstrict, prosecdef, proconfig is null as no_config, prolang = (select oid from pg_language where lanname = 'c') as c
  from functions order by proname collate "C";

-- 2. The columns of the views, in order.
select c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod) as type
  from relations c join pg_attribute a on a.attrelid = c.oid
  where c.relkind = 'v' and a.attnum > 0 order by c.relname collate "C", a.attnum;

-- 3. Every object and every column has a comment.
select pg_describe_object(classid, objid, 0) as without_comment from members
  where classid <> 'pg_type'::regclass and not exists (select from pg_description d where d.classoid = classid and d.objoid = objid and d.objsubid = 0 and d.description <> '');
select c.relname, a.attname as without_comment
  from relations c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  where c.relkind <> 'S' and coalesce(col_description(c.oid, a.attnum), '') = '';
select obj_description(oid, 'pg_extension') <> '' as extension_has_one from pg_extension where extname = 'lease_lock';

-- 4. Rights: PUBLIC has EXECUTE on the callers' functions, SELECT on the views, and no USAGE on the schema.
select proname, has_function_privilege('public', oid, 'execute') as public from functions order by 2 desc, proname collate "C";
select relname, relkind,
       has_table_privilege('public', oid, 'select') as public_reads,
       relkind <> 'S' and has_table_privilege('public', oid, 'insert, update, delete, truncate, references, trigger') as public_writes,
       relkind <> 'S' and has_any_column_privilege('public', oid, 'insert, update, references') as columns
  from relations where relkind <> 'i' order by relname collate "C";
select relname, has_sequence_privilege('public', oid, 'usage, select, update') as public from relations where relkind = 'S' order by relname collate "C";
select relname, has_table_privilege('pg_read_all_stats', oid, 'select') as stats_reads from relations where relkind = 'r' order by relname collate "C";
select has_schema_privilege('public', 'lease_lock', 'usage') as usage, has_schema_privilege('public', 'lease_lock', 'create') as "create";
select count(*) as owned_by_others from relations where relowner <> (select extowner from pg_extension where extname = 'lease_lock');

-- 5. Types: no reg* column, which would stop pg_upgrade; times are with time zone; no call takes one.
select c.relname, a.attname, a.atttypid::regtype from relations c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
  where a.atttypid::regtype::text ~ '^reg' or a.atttypid in ('timestamp'::regtype, 'time'::regtype, 'timetz'::regtype, 'date'::regtype);
select count(*) > 0 as times_there from relations c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 where a.atttypid = 'timestamptz'::regtype;
select proname from functions where proargtypes::oid[] && array['timestamptz'::regtype, 'timestamp'::regtype, 'date'::regtype, 'time'::regtype, 'timetz'::regtype]::oid[];
select c.relname, a.attname, co.collname from relations c join pg_index i on i.indrelid = c.oid and i.indisprimary join pg_attribute a on a.attrelid = c.oid and a.attnum = any (i.indkey)
  left join pg_collation co on co.oid = a.attcollation order by c.relname collate "C";

-- 6. Storage; dumped with the database.
select c.relname, am.amname, c.relpersistence, c.relrowsecurity, (select count(*) from pg_trigger where tgrelid = c.oid) as triggers
  from relations c join pg_am am on am.oid = c.relam where c.relkind = 'r' order by c.relname collate "C";
-- Nothing that a renewal, a release or a raised fence changes is indexed.
select c.relname, a.attname as indexed from relations c join pg_index i on i.indrelid = c.oid join pg_attribute a on a.attrelid = c.oid and a.attnum = any (i.indkey)
  where a.attname in ('expire_at', 'renewed_at', 'ended_at', 'ended_by', 'free_at', 'highest', 'accepted_at', 'accepted_by');
select count(*) as expressions from relations c join pg_index i on i.indrelid = c.oid where i.indexprs is not null or i.indpred is not null;
select c.relname, o.option_name, o.option_value from relations c, pg_options_to_table(c.reloptions) o
  where o.option_name in ('fillfactor', 'vacuum_truncate') order by c.relname collate "C", o.option_name;
select extconfig::regclass[]::text[] @> array(select oid::regclass::text from relations where relkind in ('r', 'S') and relname <> 'token_seq') as all_dumped,
       'lease_lock.token_seq'::regclass = any (extconfig) as sets_tokens_back,
       (select bool_and(c = '') from unnest(extcondition) c) as whole, extrelocatable, extversion
  from pg_extension where extname = 'lease_lock';
-- The lease table has the columns that others rely on.
select attname, format_type(atttypid, atttypmod) from pg_attribute where attrelid = 'lease_lock.lease'::regclass and attname in ('owner', 'expire_at', 'version') order by attname;
select attname, format_type(atttypid, atttypmod) from pg_attribute where attrelid = 'lease_lock.audit'::regclass and attnum > 0 order by attnum;

-- 7. A schema of that name that was there before is not adopted.
drop extension lease_lock;
create schema lease_lock;
create table lease_lock.lease (resource text, owner text, version bigint);
create extension lease_lock;
\echo :SQLSTATE
drop schema lease_lock cascade;
create extension lease_lock schema public;
\echo :SQLSTATE
create extension lease_lock;
alter extension lease_lock set schema public;
\echo :SQLSTATE
-- Every token starts at 1 with a new extension.
select lease_lock.acquire('x', 'A');
drop extension lease_lock;
select count(*) from pg_namespace where nspname = 'lease_lock';
