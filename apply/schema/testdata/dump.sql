--
-- PostgreSQL database dump
--

\restrict CXZ0eqxrjpTSKZaOO9tvzqNIWzYi8lX5

-- Dumped from database version 15.18
-- Dumped by pg_dump version 15.18

SET statement_timeout = 0;
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);

--
-- Name: mood; Type: TYPE; Schema: S; 1; Owner: -
--

CREATE TYPE "S; 1".mood AS ENUM (
    'sad',
    'it''s
--
-- Name: ok; Type: TABLE; Schema: no; Owner: -
--
'
);


--
-- Name: f(integer, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.f(integer, text) RETURNS integer
    LANGUAGE plpgsql
    AS $_$
-- Name: x; Type: TABLE; Schema: no; Owner: -
/* $$ ' */ begin return $1; end $_$;


--
-- Name: g(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.g() RETURNS text
    LANGUAGE sql
    BEGIN ATOMIC
 SELECT E'\\''
-- Name: y; Type: TABLE; Schema: no; Owner: -
' AS "-- ;";
END;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: t; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.t (
    id integer DEFAULT public.f(1, 'SET default_x = 1;
--
') NOT NULL
);

ALTER TABLE ONLY public.t REPLICA IDENTITY FULL;


--
-- Name: public; Type: SCHEMA; Schema: -; Owner: -
--

-- *not* creating schema, since initdb creates it


SET default_tablespace = '';

--
-- Name: t t_pkey; Type: CONSTRAINT; Schema: public; Owner: -; Tablespace: fast
--

ALTER TABLE ONLY public.t
    ADD CONSTRAINT t_pkey PRIMARY KEY (id);


--
-- PostgreSQL database dump complete
--

\unrestrict CXZ0eqxrjpTSKZaOO9tvzqNIWzYi8lX5

