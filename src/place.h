/*
 * place.h
 *		Rows of lease_lock.place.
 */
#ifndef LEASE_LOCK_PLACE_H
#define LEASE_LOCK_PLACE_H

#include "lease_lock.h"

#define PLACE_INSTALLED "installed"

/* Hashed as bytes: no padding, and zeroed first. */
typedef struct Place
{
	uint64		system;
	uint32		timeline;
	Oid			database;
	Oid			sequence;
	uint32		unused;
} Place;

typedef struct PlaceRow
{
	TimestampTz at;
	int64		highest;
	int64		started;
	Place		place;
	char	   *reason;
} PlaceRow;

extern bool place_newest(Relation places, bool jump, PlaceRow *newest);

#endif							/* LEASE_LOCK_PLACE_H */
