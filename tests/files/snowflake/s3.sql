-- public.users in Snowflake, by an external stage: fill in <storage_integration>.
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
    url = 's3://bucket/files/'
    storage_integration = <storage_integration>
    file_format = (format_name = '"public"."penstock_csv"');

-- The full copy, as text and then in its types.
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
    "id" number(10, 0) not null,
    "Name" varchar(20),
    "a ""b""" number(10, 2),
    "it's" binary,
    "at" timestamp_tz(6),
    "about" varchar,
    primary key ("id")
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

-- Changes, as text.
create or replace table "public"."users__changes" (
    "_op" varchar,
    "_commit_lsn" varchar,
    "_lsn" varchar,
    "_seq" varchar,
    "_xid" varchar,
    "_committed_at" varchar,
    "_unchanged" varchar,
    "id" varchar,
    "Name" varchar,
    "a ""b""" varchar,
    "it's" varchar,
    "at" varchar,
    "about" varchar
);

copy into "public"."users__changes" from '@"public"."penstock_files"/'
    files = (
        'public.users/2026-01-31T12-00-01/streaming.csv.gz'
    )
    file_format = (format_name = '"public"."penstock_csv"') on_error = abort_statement;

-- Changes in their types and in their order, each with the line that its row was last in.
create or replace temporary table "public"."users__lines" as
with file as (
    select
        "_op", "_commit_lsn", "_seq"::number as "_seq",
        row_number() over (order by "_commit_lsn", "_seq"::number, "_op") as "_n",
        coalesce(parse_json('[' || substr("_unchanged", 2, length("_unchanged") - 2) || ']')::array,
            array_construct()) as "_kept",
        "id"::number(10, 0) as "id",
        "Name" as "Name",
        "a ""b"""::number(10, 2) as "a ""b""",
        to_binary(substr("it's", 3), 'HEX') as "it's",
        to_timestamp_tz("at" || ':00') as "at",
        "about" as "about"
    from "public"."users__changes"
), line as (
    select "_op", "_commit_lsn", "_seq", "_n", "_kept", "id", "Name", "a ""b""", "it's", "at", "about"
    from file where "_n" > (select coalesce(max("_n"), 0) from file where "_op" = 'T')
    union all
    select 'I', null, null, -row_number() over (order by null), array_construct(),
        t."id", t."Name", t."a ""b""", t."it's", t."at", t."about"
    from "public"."users" t
    where ("id") in (select "id" from file)
        and not exists (select 1 from "public"."users__changes" where "_op" = 'T')
), found as (
    select *, lag("_n") over (partition by "id" order by "_n") as "_same_key" from line
)
select "_op", "_n", "_kept", "id", "Name", "a ""b""", "it's", "at", "about",
    iff("_op" = 'U' and lag("_op") over (partition by "_commit_lsn", "_seq" order by "_op") = 'D',
        lag("_same_key") over (partition by "_commit_lsn", "_seq" order by "_op"), "_same_key") as "_before"
from found;

-- Values that were not sent are those of the line before, or of the one before that.
execute immediate $$
declare
    lost exception (-20001, 'rows that were changed are not there');
    to_find integer;
begin
    loop
        select count(*) into :to_find from "public"."users__lines"
            where array_size("_kept") > 0 and "_before" is not null;
        if (to_find = 0) then
            break;
        end if;
        create or replace temporary table "public"."users__lines" as
        select l."_op" as "_op", l."_n" as "_n",
            iff(array_size(l."_kept") > 0, array_intersection(l."_kept", b."_kept"), l."_kept") as "_kept",
            iff(array_contains('id'::variant, l."_kept"), b."id", l."id") as "id",
            iff(array_contains('Name'::variant, l."_kept"), b."Name", l."Name") as "Name",
            iff(array_contains('a "b"'::variant, l."_kept"), b."a ""b""", l."a ""b""") as "a ""b""",
            iff(array_contains('it\'s'::variant, l."_kept"), b."it's", l."it's") as "it's",
            iff(array_contains('at'::variant, l."_kept"), b."at", l."at") as "at",
            iff(array_contains('about'::variant, l."_kept"), b."about", l."about") as "about",
            iff(array_size(l."_kept") > 0, b."_before", l."_before") as "_before"
        from "public"."users__lines" l
        left join "public"."users__lines" b on b."_n" = l."_before" and array_size(l."_kept") > 0;
    end loop;
    select count(*) into :to_find from "public"."users__lines" where array_size("_kept") > 0;
    if (to_find > 0) then
        raise lost;
    end if;
end;
$$;

-- Each key gets what its last line says.
begin transaction;
delete from "public"."users" where exists (select 1 from "public"."users__changes" where "_op" = 'T');
merge into "public"."users" t using (
    select * from "public"."users__lines" qualify row_number() over (partition by "id" order by "_n" desc) = 1
) s on t."id" = s."id"
when matched and s."_op" = 'D' then delete
when matched then update set "Name" = s."Name", "a ""b""" = s."a ""b""", "it's" = s."it's", "at" = s."at", "about" = s."about"
when not matched and s."_op" <> 'D' then insert ("id", "Name", "a ""b""", "it's", "at", "about")
    values (s."id", s."Name", s."a ""b""", s."it's", s."at", s."about");
delete from "public"."users__changes";
commit;

-- What came after 0/20 is for a table with other columns: public.users/2026-01-31T12-00-02/ddl.txt says which.
-- Have the table copied anew (penstock reload), then run this command again.
