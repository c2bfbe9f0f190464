# lease_lock: leases with fencing tokens for PostgreSQL.
#
#	make test	installs what it needs, builds, and runs every suite
#	make demo	plays the paused-holder story on a throwaway server
#	make top	shows holders, waiters and refusals live, on the server that PGHOST
#			and the like name, every INTERVAL=2 seconds
#
# The other targets are those of PGXS: all, install, installcheck, clean.

EXTENSION = lease_lock
MODULE_big = lease_lock
OBJS = \
	src/admin.o \
	src/args.o \
	src/backends.o \
	src/bypass.o \
	src/commit.o \
	src/evict.o \
	src/fence.o \
	src/fence_column.o \
	src/fence_trigger.o \
	src/grant.o \
	src/grant_wait.o \
	src/guard.o \
	src/guard_call.o \
	src/guard_check.o \
	src/history.o \
	src/lease_sql.o \
	src/line.o \
	src/locks.o \
	src/main.o \
	src/named.o \
	src/named_list.o \
	src/place.o \
	src/presented.o \
	src/rejections.o \
	src/relations.o \
	src/renew.o \
	src/rights.o \
	src/rings.o \
	src/rows.o \
	src/session.o \
	src/shared.o \
	src/stats.o \
	src/stats_file.o \
	src/stats_sql.o \
	src/target.o \
	src/template.o \
	src/token.o \
	src/token_sql.o \
	src/views.o \
	src/wait.o \
	src/waiting_views.o
DATA = sql/lease_lock--1.0.sql
PGFILEDESC = "lease_lock - leases with fencing tokens"

REGRESS = $(patsubst test/sql/%.sql,%,$(sort $(wildcard test/sql/*.sql)))
REGRESS_OPTS = --inputdir=test
ISOLATION = $(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/*.spec)))
ISOLATION_OPTS = --inputdir=test --outputdir=.
TAP_TESTS = 1
PROVE_TESTS = test/t/*.pl

# make test and make demo set up PostgreSQL first, so they must not need it; and
# make top needs psql alone.
PG_CONFIG ?= pg_config
ifeq (,$(filter test demo top,$(MAKECMDGOALS)))
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)
# Warnings are errors, less those that PostgreSQL's own headers raise.
PG_CFLAGS_STRICT = -Wall -Wextra -Werror -Wno-unused-parameter -Wno-sign-compare \
	-Wno-missing-field-initializers -Wno-cast-function-type
override CFLAGS += $(if $(STRICT),$(PG_CFLAGS_STRICT))

$(OBJS) $(OBJS:.o=.bc): $(wildcard src/*.h)
else
.PHONY: test demo top
test:
	test/run
demo:
	test/demo

PSQL ?= psql
INTERVAL ?= 2
top:
	@clear=; if [ -t 1 ]; then clear=$$(printf '\033[H\033[2J'); fi; \
	exec $(PSQL) -X -q -v interval=$(INTERVAL) -v clear="$$clear" -f monitoring/top.sql
endif
