"""The table that benchmarks move: eight columns of mixed types, some 165 bytes a row.

Rows are made by the source itself, by procedures: `inserts`, in transactions of a thousand, and `mixed`,
half updates, a quarter each inserts and deletes, in transactions of 4 to 2,000 changes. `mixed` keeps the
table's size: it deletes the oldest rows, adds as many, and updates all over the table; no row twice in one
transaction (the stride is prime).
"""

from __future__ import annotations

TABLE = """
create table t (id bigint primary key, a int, b int, c text, d text, e numeric(14, 2), f timestamptz, g bool)
"""
ROW = """
i, i % 100, i * 7 % 1000003, md5(i::text), 'name ' || i || repeat(' and so on', 5), i * 1.25,
timestamptz '2026-01-01' + i * interval '1 second', i % 2 = 0
"""

INSERTS = f"""
create procedure inserts(first bigint, amount bigint) language plpgsql as $$
begin
    for k in first .. first + amount - 1 by 1000 loop
        insert into t select {ROW} from generate_series(k, least(k + 999, first + amount - 1)) i;
        commit;
    end loop;
end $$
"""
MIXED = f"""
create procedure mixed(changes bigint) language plpgsql as $$
declare
    sizes int[] := array[4, 20, 100, 400, 2000];
    low bigint; size bigint; number int := 0; quarter int;
begin
    select min(id), max(id) - min(id) + 1 into low, size from t;
    while changes >= 4 loop
        quarter := least(sizes[1 + number % 5], changes, size) / 4;
        update t set a = a + 1, c = md5(c), f = f + interval '1 minute' where id = any (array(
            select low + (number * 104729::bigint + k * 7919) % size
            from generate_series(1, 2 * quarter) k));
        insert into t select {ROW} from generate_series(low + size, low + size + quarter - 1) i;
        delete from t where id >= low and id < low + quarter;
        commit;
        low := low + quarter;
        changes := changes - 4 * quarter;
        number := number + 1;
    end loop;
end $$
"""
