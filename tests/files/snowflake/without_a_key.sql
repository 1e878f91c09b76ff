-- public.users in Snowflake, by PUT and an internal stage.
-- The full copy of 0/10, and changes through 0/20.
-- When all of it has run, tell the registry (PostgreSQL), so that later files are kept until they are read:
--   insert into cdc_registry.consumers (consumer, table_name, last_lsn)
--   values ('snowflake', 'public.users', '0/20')
--   on conflict (consumer, table_name) do update set last_lsn = excluded.last_lsn, updated_at = now();

create schema if not exists "public";

-- NULL is nothing at all, an empty string is ""; a backslash is one, and so is \N.
create or replace file format "public"."penstock_csv"
    type = csv compression = auto encoding = 'UTF8' skip_header = 1
    field_delimiter = ',' record_delimiter = '\n' multi_line = true trim_space = false
    field_optionally_enclosed_by = '"' escape = none escape_unenclosed_field = none
    empty_field_as_null = true null_if = () error_on_column_count_mismatch = true;

create stage if not exists "public"."penstock_files"
    file_format = (format_name = '"public"."penstock_csv"');

-- The full copy, as text and then in its types.
put 'file:///data/files/public.users/2026-01-31T12-00-00/full_reload.csv.gz' '@"public"."penstock_files"/public.users/2026-01-31T12-00-00/' auto_compress = false;
create or replace transient table "public"."users__copy" (
    "id" varchar,
    "Name" varchar,
    "a ""b""" varchar,
    "it's" varchar,
    "at" varchar,
    "about" varchar
);
copy into "public"."users__copy" from '@"public"."penstock_files"/public.users/2026-01-31T12-00-00/full_reload.csv.gz'
    file_format = (format_name = '"public"."penstock_csv"') on_error = abort_statement;

create or replace table "public"."users" (
    "id" number(10, 0),
    "Name" varchar(20),
    "a ""b""" number(10, 2),
    "it's" binary,
    "at" timestamp_tz(6),
    "about" varchar
);
insert into "public"."users" ("id", "Name", "a ""b""", "it's", "at", "about")
select
    "id"::number(10, 0),
    "Name",
    "a ""b"""::number(10, 2),
    to_binary(substr("it's", 3), 'HEX'),
    to_timestamp_tz("at" || ':00'),
    "about"
from "public"."users__copy";
drop table "public"."users__copy";

-- Changes: the table has no key that its rows could be found by. Give it a primary key.
