-- A picture of lease_lock in a terminal, 120 columns wide: make top, or
--   psql -X -q -v interval=2 -f monitoring/top.sql
-- With -v once=1 it is shown once.  Any role with USAGE on the schema may look;
-- refusals are for members of pg_read_all_stats.

\set QUIET on
\set ON_ERROR_STOP on
\pset pager off
\pset format unaligned
\pset tuples_only on
\pset footer off
\if :{?interval}
\else
  \set interval 2
\endif
-- What goes before each picture: a blank line, or what clears a terminal.
\if :{?clear}
\else
  \set clear ''
\endif
SELECT has_table_privilege('lease_lock.rejections', 'SELECT') AS sees_refusals \gset

-- Every part is lines of text: psql repeats one query, and that cannot have
-- columns of several kinds.
WITH stats AS (
  SELECT * FROM lease_lock.stats
), holders AS (
  SELECT * FROM lease_lock.holders
), waiters AS (
  SELECT * FROM lease_lock.waiters
), lines (part, n, line) AS (
  SELECT 0, 1::bigint,
         format('lease_lock in %s, %s; counted since %s', current_database(),
                to_char(clock_timestamp(), 'YYYY-MM-DD HH24:MI:SS'), coalesce(to_char(s.since, 'YYYY-MM-DD HH24:MI'), 'never'))
  FROM stats AS s
  UNION ALL
  SELECT 0, 2, format('grants %s  success %s  timeouts %s  busy %s  renewals %s (late %s, failed %s)  releases %s  expired %s',
                      s.grants, coalesce(round(100 * s.acquire_success)::text || ' %', '-'), s.timeouts, s.busy, s.renewals,
                      s.renewals_late, s.renewals_failed, s.releases, s.expired)
  FROM stats AS s
  UNION ALL
  SELECT 0, 3, format('refused: stale %s  no token %s  not held %s  unknown %s  no name %s  only warned %s   evictions %s  deadlocks %s',
                      s.refused_stale, s.refused_no_token, s.refused_not_held, s.refused_unknown, s.refused_no_name, s.warned,
                      s.evictions, s.deadlocks)
  FROM stats AS s
  UNION ALL
  SELECT 0, 4, format('wait: p50 %s  p95 %s  max %s   hold: p50 %s  p95 %s  max %s   guards: %s, with a problem %s',
                      t.d[1], t.d[2], t.d[3], t.d[4], t.d[5], t.d[6], g.guards, g.problems)
  FROM stats AS s,
       LATERAL (SELECT array_agg(coalesce(round(extract(epoch FROM v.d), 3) || ' s', '-') ORDER BY v.n) AS d
                FROM (VALUES (1, s.wait_p50), (2, s.wait_p95), (3, s.wait_max), (4, s.hold_p50), (5, s.hold_p95), (6, s.hold_max))
                  AS v (n, d)) AS t,
       (SELECT count(*) AS guards, count(problem) AS problems FROM lease_lock.guards) AS g
  -- Holders that need a look come first.
  UNION ALL
  SELECT 1, 0, format('HOLDERS %s', (SELECT count(*) FROM holders))
  UNION ALL
  SELECT 1, 1, concat_ws('  ', rpad('resource', 30), rpad('owner', 21), lpad('token', 16), lpad('left', 9), lpad('held for', 9),
                         lpad('wait', 4), 'health')
  UNION ALL
  SELECT 1, 1 + h.n, concat_ws('  ', rpad(h.resource, 30), rpad(h.owner, 21), lpad(h.token::text, 16),
                               lpad(round(extract(epoch FROM h.remaining)) || ' s', 9), lpad(round(extract(epoch FROM h.held_for)) || ' s', 9),
                               lpad(h.waiters::text, 4), h.health)
  FROM (SELECT *, row_number() OVER (ORDER BY waiters > 0 DESC, health = 'ok', health = 'overdue', waiters DESC, remaining, resource) AS n
        FROM holders) AS h
  WHERE h.n <= 12
  UNION ALL
  SELECT 2, 0, format('WAITERS %s', (SELECT count(*) FROM waiters))
  UNION ALL
  SELECT 2, 1, concat_ws('  ', rpad('resource', 32), lpad('#', 4), rpad('owner', 24), lpad('waited', 9), lpad('gives up', 9),
                         rpad('holder', 16), 'blocked by')
  UNION ALL
  SELECT 2, 1 + w.n, concat_ws('  ', rpad(w.resource, 32), lpad(w.place::text, 4), rpad(w.owner, 24),
                               lpad(round(extract(epoch FROM clock_timestamp() - w.waiting_since)) || ' s', 9),
                               lpad(round(extract(epoch FROM w.deadline - clock_timestamp())) || ' s', 9),
                               rpad(coalesce(w.holder, '-'), 16), array_to_string(w.blocked_by, ','))
  FROM (SELECT *, row_number() OVER (ORDER BY waiting_since, resource, place) AS n FROM waiters) AS w
  WHERE w.n <= 8
\if :sees_refusals
  UNION ALL
  SELECT 3, 0, 'REFUSALS, the last ones'
  UNION ALL
  SELECT 3, 1, concat_ws('  ', rpad('at', 8), lpad('count', 7), rpad('table', 20), rpad('resource', 22), rpad('reason', 13),
                         rpad('action', 7), lpad('token', 16), 'role')
  UNION ALL
  SELECT 3, 1 + r.n, concat_ws('  ', to_char(r.at, 'HH24:MI:SS'), lpad(r.count::text, 7), rpad(coalesce(r.relation::text, r.statement), 20),
                               rpad(coalesce(r.resource, '-'), 22), rpad(r.reason, 13), rpad(r.action, 7),
                               lpad(coalesce(r.token::text, '-'), 16), r.role)
  FROM (SELECT *, row_number() OVER (ORDER BY at DESC) AS n FROM lease_lock.rejections) AS r
  WHERE r.n <= 6
\endif
  UNION ALL
  SELECT 4, 0, 'HOT NAMES'
  UNION ALL
  SELECT 4, 1, concat_ws('  ', rpad('resource', 40), lpad('waiters', 7), lpad('waits', 10), lpad('timeouts', 8), lpad('waited in all', 15),
                         lpad('p95', 12), lpad('longest', 12))
  UNION ALL
  SELECT 4, 1 + h.n, concat_ws('  ', rpad(h.resource, 40), lpad(h.waiters::text, 7), lpad(h.waits::text, 10), lpad(h.timeouts::text, 8),
                               lpad(round(extract(epoch FROM h.wait_total), 3) || ' s', 15),
                               lpad(round(extract(epoch FROM h.wait_p95), 3) || ' s', 12),
                               lpad(round(extract(epoch FROM h.wait_max), 3) || ' s', 12))
  FROM (SELECT *, row_number() OVER (ORDER BY heat DESC, waiters DESC, resource) AS n FROM lease_lock.hot) AS h
  WHERE h.n <= 6
)
-- Names are anybody's text: no line is longer than the screen, and nothing in
-- them reaches the terminal as a command.
SELECT CASE WHEN row_number() OVER w = 1 THEN coalesce(nullif(:'clear', ''), E'\n') ELSE '' END
       || CASE WHEN n = 0 THEN E'\n' ELSE '' END
       || rtrim(left(regexp_replace(line, '[\x01-\x1f\x7f-\x9f]', '?', 'g'), 120))
FROM lines
WINDOW w AS (ORDER BY part, n)
ORDER BY part, n
\if :{?once}
  \g
\else
  \watch :interval
\endif
