-- Names are compared byte for byte, and shown as they are.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;

-- Pairs that something else might take for one name.
create temp table pairs (what text, a text, b text);
insert into pairs values
  ('case', 'Job', 'job'),
  ('trailing blank', 'job', 'job '),
  ('leading blank', 'job', ' job'),
  ('blanks alone', ' ', '   '),
  ('tab and blank', E'a\tb', 'a b'),
  ('NFC and NFD', E'caf\u00e9', E'cafe\u0301'),
  ('zero width space', 'a', E'a\u200b'),
  ('no-break space', 'a b', E'a\u00a0b'),
  ('long s', 's', E'\u017f'),
  ('sharp s', E'stra\u00dfe', 'strasse'),
  ('ligature', E'\ufb01', 'fi'),
  ('Greek and Latin', 'A', E'\u0391'),
  ('leading zero', '1', '01'),
  ('equal 32-bit hashes', 'job:11352', 'job:189279'),
  ('equal again', 'job:6955', 'job:43347'),
  ('and again', 'job:116298', 'job:144960'),
  ('newline at the end', 'x', E'x\n'),
  ('last of 512 bytes', repeat('x', 511) || 'a', repeat('x', 511) || 'b');
-- While all the first ones are held by A, none of the second ones that is
-- not a first one itself stands in anybody's way.
select a as resource, lease_lock.try_acquire(a, 'A', '1 hour') as token into temp table taken
  from (select distinct a from pairs) d order by a collate "C";
select count(*) = count(token) as all_granted from taken;
select what, a = b as same, lease_lock.try_acquire(b, 'B', '1 hour') is not null as b_granted
  from pairs where b not in (select resource from taken) order by pairs.ctid;
select what, ha.owner as a, hb.owner as b
  from pairs left join lease_lock.holders ha on ha.resource = a left join lease_lock.holders hb on hb.resource = b order by pairs.ctid;
select count(*) as hashes_differ from pairs where what ~ 'equal|again' and hashtext(a) <> hashtext(b);
-- Owners too: each of these is a stranger to the other.
select what, lease_lock.try_acquire('owner ' || what, a, '1 hour') is not null as a, lease_lock.try_acquire('owner ' || what, b, '1 hour') as b
  from pairs order by ctid;
-- A token counts for its own name alone.
select what,
       (select state from lease_lock.token_status(b, (select token from lease_lock.holders where resource = a))) as a_token_for_b,
       lease_lock.renew(b, (select token from lease_lock.holders where resource = a)) as renewed,
       lease_lock.release(b, (select token from lease_lock.holders where resource = a)) as released
  from pairs where what in ('leading blank', 'NFC and NFD', 'zero width space', 'equal 32-bit hashes', 'last of 512 bytes') order by ctid;

-- Names that need care in messages, in SQL and in templates.
create temp table odd (n int, name text);
insert into odd values (1, 'it''s'), (2, '"quoted"'), (3, 'back\slash'), (4, E'new\nline'), (5, '100%s %d %n'), (6, '{braces}'), (7, '$1; --'), (8, '$$'), (9, E'\U0001F512'), (10, '''; drop table odd; --');
select n, lease_lock.acquire(name, name, '1 hour', payload => to_jsonb(name)) is not null as granted from odd order by n;
select n, h.resource, h.owner, h.payload from odd join lease_lock.holders h on h.resource = name order by n;
select n, f.name, f.mode from odd join lease_lock.fences f using (name) order by n;
do $$
declare r record;
begin
  for r in select n, name from odd order by n loop
    begin
      perform lease_lock.acquire(r.name, 'B', wait => '0');
    exception when lock_not_available then
      raise info '%: %', r.n, sqlerrm;
    end;
    begin
      perform lease_lock.assert_held(r.name, 1000000);
    exception when others then
      raise info '%: % %', r.n, sqlstate, sqlerrm;
    end;
  end loop;
end $$;
-- As constant names of guards: the trigger guards exactly that name.
create table t (v int);
do $$
declare r record; template text;
begin
  for r in select n, name from odd order by n loop
    perform lease_lock.guard('t', replace(replace(r.name, '{', '{{'), '}', '}}'));
    begin
      insert into t values (r.n);
      raise info '%: not guarded', r.n;
    exception when sqlstate 'LL002' then
      raise info '%: %', r.n, sqlerrm;
    end;
    begin
      perform lease_lock.present(r.name, (select token from lease_lock.holders where resource = r.name));
      insert into t values (r.n);
    end;
  end loop;
end $$;
select v from t order by v;
-- As column values under a template, and as names of columns and tables.
select lease_lock.unguard('t');
create table "odd 'table' %s {x}" ("odd 'column' %s" text, "{curly}" int);
select lease_lock.guard('"odd ''table'' %s {x}"', '{odd ''column'' %s}');
begin;
select lease_lock.present(resource, token) is not null as presented from lease_lock.holders join odd on name = resource order by n;
insert into "odd 'table' %s {x}" select name, n from odd;
commit;
insert into "odd 'table' %s {x}" values ('not presented');
select count(*) from "odd 'table' %s {x}";
select pg_get_triggerdef(oid) from pg_trigger where tgrelid = '"odd ''table'' %s {x}"'::regclass order by tgname;
select object from lease_lock.audit where object ~ 'odd' order by at;
-- A brace in a column's name cannot be written in a template.
select lease_lock.guard('"odd ''table'' %s {x}"', '{{{curly}}}');
select lease_lock.guard('"odd ''table'' %s {x}"', '{{curly}}');
select lease_lock.unguard('"odd ''table'' %s {x}"');

drop table t, "odd 'table' %s {x}";
drop extension lease_lock;
