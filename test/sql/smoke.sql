create extension lease_lock;
select lease_lock.acquire('smoke','A');
