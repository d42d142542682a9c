-- table     source rows  target rows  missing  extra  different  time
-- public.t        1,000          999        2      1          1  1.0s
--     extra      id=-1
--     missing    id=3
--     missing    id=4
--     and 1 more
-- not ready, and not compared: public.u (copying)
-- no runner lives: compared as it is, and what is on its way counts as different
-- 0 of 1 table equal; 1,000 rows compared in 2.0s, 500 rows/s
-- Run this on the target, while nothing of these rows is on its way.
SET client_encoding = 'UTF8'; SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET standard_conforming_strings = on; SET lc_monetary = 'C';
SET session_replication_role = replica; -- as a superuser: no triggers, no foreign keys
DELETE FROM ONLY "public"."t" WHERE ("id") IN (('-1'));
INSERT INTO "public"."t" ("id", "a") OVERRIDING SYSTEM VALUE VALUES ('3', 'row 3');
INSERT INTO "public"."t" ("id", "a") OVERRIDING SYSTEM VALUE VALUES ('4', 'row 4');
-- 1 difference of table public.t without a statement: more than --limit, or its rows have no key
