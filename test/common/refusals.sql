-- What the regress tests share, included with \i: how a statement ends.

-- In one line.
create function pg_temp.outcome(sql text) returns text language plpgsql as $$
declare n bigint;
begin
  execute sql;
  get diagnostics n = row_count;
  return 'ok, ' || n || ' rows';
exception when others then
  return sqlstate || ': ' || sqlerrm;
end $$;

-- Message, detail and hint of the error, without times.
create function pg_temp.refusal(sql text) returns table (part text, says text) language plpgsql as $$
declare s text; m text; d text; h text;
begin
  execute sql;
  return query select 'no error', null::text;
exception when others then
  get stacked diagnostics s = returned_sqlstate, m = message_text, d = pg_exception_detail, h = pg_exception_hint;
  d := regexp_replace(d, '\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?([-+]\d+(:\d+)?| [A-Z]+)', '(time)', 'g');
  d := regexp_replace(d, '[0-9.]+ m?s left', '(time) left', 'g');
  return query values (s, m), ('detail', d), ('hint', h);
end $$;
