package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/stream"
	"pgapply/cmd/pgapply/demo"
	"pgapply/conflict"
	"pgapply/internal/lsn"
)

// called is what a command line came to.
type called struct {
	options  *apply.Options // nil when the engine was not started
	out, log string
	err      error
}

// call runs a command line, with an engine that only notes its options.
func call(t *testing.T, environment map[string]string, arguments ...string) called {
	for name, value := range environment {
		t.Setenv(name, value)
	}
	var c called
	var out, log bytes.Buffer
	root := newRoot(func(_ context.Context, options apply.Options, _ httpOptions) error {
		c.options = &options
		return options.Validate()
	})
	root.SetOut(&out)
	root.SetErr(&log)
	root.SetArgs(arguments)
	c.err = root.ExecuteContext(t.Context())
	c.out, c.log = out.String(), log.String()
	return c
}

func run(flags ...string) []string {
	return append([]string{"run", "--source", "dbname=a", "--target", "dbname=b", "--publication", "p"}, flags...)
}

func TestRunHasTheEnginesDefaults(t *testing.T) {
	c := call(t, nil, run()...)
	require.NoError(t, c.err)
	want := apply.DefaultOptions()
	want.Source, want.Target, want.Publications = "dbname=a", "dbname=b", []string{"p"}
	want.Version, want.Log = version, c.options.Log
	require.Equal(t, want, *c.options)
}

func TestRunTakesEveryFlag(t *testing.T) {
	c := call(t, nil, run("--name", "sub", "--source-passfile", "/a", "--target-passfile", "/b", "--wait=false",
		"--publication", "with, comma", "--slot", "s", "--create-slot=false", "--failover", "--streaming", "on", "--binary",
		"--origin", "none", "--progress", "origin", "--fire-triggers", "--endpos", "1/2", "--on-error", "stop", "--workers", "2", "--synchronous-commit", "local",
		"--max-group-transactions", "1", "--max-group-rows", "2", "--max-group-bytes", "3kB", "--max-group-age", "4ms", "--max-batch", "7kB",
		"--on-conflict", "update_missing=error", "--on-conflict", "a.b, c:insert_exists=keep_local", "--conflict-retention", "1d12h", "--log-rows",
		"--copy-data=false", "--table-jobs", "8", "--split-tables-larger-than", "9MiB", "--if-not-empty", "truncate", "--yes", "--analyze=false",
		"--include-table", "a.*", "--exclude-table", "b", "--auto-refresh", "--two-phase", "--missing-table", "skip", "--messages", "table", "--memory-limit", "5MiB", "--spool-dir", "/c", "--spool-limit", "6GB", "--target-timeout", "7s")...)
	require.NoError(t, c.err)
	var policies conflict.Policies
	require.NoError(t, policies.Set("update_missing=error"))
	require.NoError(t, policies.Set("a.b, c:insert_exists=keep_local"))
	require.Equal(t, apply.Options{
		TableJobs: 8, SplitLargerThan: 9 << 20, IfNotEmpty: "truncate", Confirmed: true, AutoRefresh: true,
		Tables:   apply.TableFilter{Include: []string{"a.*"}, Exclude: []string{"b"}},
		TwoPhase: true, OnConflict: policies, ConflictRetention: 36 * time.Hour, LogRows: true, MissingTable: "skip", Messages: "table",
		Name: "sub", Source: "dbname=a", Target: "dbname=b", SourcePassfile: "/a", TargetPassfile: "/b",
		Publications: []string{"p", "with, comma"}, Slot: "s", Failover: true, Streaming: "on", Binary: true, Origin: "none", Progress: "origin", FireTriggers: true,
		EndLSN: lsn.LSN(1<<32 + 2), OnError: "stop", Workers: 2, SynchronousCommit: "local",
		MaxGroup:    stream.Limits{Transactions: 1, Rows: 2, Bytes: 3 << 10, Age: 4 * time.Millisecond},
		MaxBatch:    7 << 10,
		MemoryLimit: 5 << 20, SpoolDir: "/c", SpoolLimit: 6 << 30, TargetTimeout: 7 * time.Second, Log: c.options.Log, Version: version,
	}, *c.options)
}

func TestEnvironmentStandsInForFlags(t *testing.T) {
	environment := map[string]string{
		"PGAPPLY_SOURCE": "dbname=a", "PGAPPLY_TARGET": "dbname=b", "PGAPPLY_COPY_DATA": "false",
		"PGAPPLY_PUBLICATION": `one,"two, three"`, "PGAPPLY_BINARY": "true", "PGAPPLY_MAX_GROUP_AGE": "2s",
		"PGAPPLY_ENDPOS": "current", "PGAPPLY_SLOT": "", "PGAPPLY_ON_CONFLICT": `insert_exists=keep_local,"a.b, c:delete_missing=error"`,
	}
	c := call(t, environment, "run", "--max-group-age", "3s", "--binary=false")
	require.NoError(t, c.err)
	require.Equal(t, "dbname=a", c.options.Source)
	require.Equal(t, []string{"one", "two, three"}, c.options.Publications)
	require.Equal(t, []string{"a.b, c:delete_missing=error", "insert_exists=keep_local"}, c.options.OnConflict.Strings())
	require.True(t, c.options.EndAtCurrent)
	require.False(t, c.options.Binary, "the command line wins")
	require.Equal(t, 3*time.Second, c.options.MaxGroup.Age, "the command line wins")

	c = call(t, environment, "run", "--publication", "four")
	require.NoError(t, c.err)
	require.Equal(t, []string{"four"}, c.options.Publications, "a list is replaced, not extended")
}

func TestFaultsOfTheCommandLine(t *testing.T) {
	for _, test := range []struct {
		name        string
		environment map[string]string
		arguments   []string
		says        []string
	}{
		{"unknown command", nil, []string{"rnu"}, []string{`unknown command "rnu"`, "`pgapply run`"}},
		{"unknown flag", nil, run("--nonsense", "4"), []string{"--nonsense", "pgapply run --help"}},
		{"argument", nil, run("more"), []string{`"more"`}},
		{"size", nil, run("--memory-limit", "lots"), []string{`"lots" is not a size`}},
		{"smallest spool", nil, run("--spool-limit", "1000KiB"), []string{"--spool-limit must be at least 1MiB"}},
		{"whole number", nil, run("--max-group-rows", "x"), []string{`pgapply: --max-group-rows: "x" is not a whole number`}},
		{"boolean", nil, run("--binary=perhaps"), []string{`pgapply: --binary: "perhaps" is not one of true, false`}},
		{"time", nil, run("--max-group-age", "5"), []string{`pgapply: --max-group-age: "5" is not a time such as 500ms`}},
		{"size in a variable", map[string]string{"PGAPPLY_MEMORY_LIMIT": "lots"}, run(), []string{`PGAPPLY_MEMORY_LIMIT: "lots" is not a size`}},
		{"no patience", nil, run("--target-timeout", "1ms"), []string{"--target-timeout must be at least 100ms"}},
		{"position", nil, run("--endpos", "end"), []string{`"end"`, "current"}},
		{"log level", nil, run("--log-level", "loud"), []string{`"loud"`, "debug"}},
		{"log format", nil, run("--log-format", "xml"), []string{`"xml"`, "json"}},
		{"boolean variable", map[string]string{"PGAPPLY_BINARY": "perhaps"}, run(), []string{"PGAPPLY_BINARY", `"perhaps" is not one of true, false`}},
		{"list variable", map[string]string{"PGAPPLY_PUBLICATION": `"a`}, []string{"run"}, []string{"PGAPPLY_PUBLICATION"}},
		{"nothing given", nil, []string{"run"}, []string{"--source", "--target", "--publication"}},
		{"table jobs", nil, run("--table-jobs", "0"), []string{"--table-jobs"}},
		{"status without a target", nil, []string{"status"}, []string{"--target", "PGAPPLY_TARGET"}},
		{"conflict policy", nil, run("--on-conflict", "insert_exists=shrug"), []string{"insert_exists=shrug", "keep_local", "--on-conflict"}},
		{"conflict policy in a variable", map[string]string{"PGAPPLY_ON_CONFLICT": "shrug"}, run(), []string{"PGAPPLY_ON_CONFLICT", `"shrug"`}},
		{"retention", nil, run("--conflict-retention", "30"), []string{`"30" is not a time span`, "30d"}},
		{"check without ends", nil, []string{"check"}, []string{"--source", "--target"}},
		{"check of wrong options", nil, []string{"check", "--source", "dbname=a", "--target", "dbname=b", "--messages", "loud"}, []string{`"loud"`}},
		{"pause without a target", nil, []string{"pause"}, []string{"--target", "PGAPPLY_TARGET"}},
		{"resume without a target", nil, []string{"resume"}, []string{"--target", "PGAPPLY_TARGET"}},
		{"skip without a position", nil, []string{"skip", "--target", "dbname=b"}, []string{"--lsn", "finished at"}},
		{"skip of nonsense", nil, []string{"skip", "--target", "dbname=b", "--lsn", "0/0"}, []string{`"0/0"`, "none"}},
		{"skip without a target", nil, []string{"skip", "--lsn", "1/1"}, []string{"--target", "PGAPPLY_TARGET"}},
		{"conflicts of an unknown kind", nil, []string{"conflicts", "lits"}, []string{`"lits"`, "`pgapply conflicts list`"}},
		{"conflicts without a target", nil, []string{"conflicts", "list"}, []string{"--target"}},
		{"conflicts since when", nil, []string{"conflicts", "list", "--since", "ever"}, []string{`"ever"`, "7d"}},
		{"conflicts of an unknown type", nil, []string{"conflicts", "list", "--type", "missing"}, []string{`"missing"`, "insert_exists, ", ", skipped"}},
		{"cleared conflicts of an unknown type", nil, []string{"conflicts", "clear", "--type", "missing"}, []string{`"missing"`, "update_missing"}},
		{"conflicts below nothing", nil, []string{"conflicts", "list", "--target", "dbname=b", "--limit", "-1"}, []string{"--limit"}},
		{"which conflict", nil, []string{"conflicts", "show", "--target", "dbname=b"}, []string{"number"}},
		{"too many conflicts", nil, []string{"conflicts", "show", "1", "2"}, []string{"number"}},
		{"no conflict", nil, []string{"conflicts", "show", "x", "--target", "dbname=b"}, []string{`"x"`}},
		{"cleared conflicts without a target", nil, []string{"conflicts", "clear"}, []string{"--target"}},
		{"sequences without a target", nil, []string{"sequences", "--all"}, []string{"--target", "PGAPPLY_TARGET"}},
		{"sequences without a publisher", nil, []string{"sequences", "--target", "dbname=b"}, []string{"--source", "PGAPPLY_SOURCE"}},
		{"sequences backwards by a margin", nil, []string{"sequences", "--source", "dbname=a", "--target", "dbname=b", "--margin", "-1"}, []string{"--margin", "--allow-backwards"}},
		{"cleanup without a target", nil, []string{"cleanup"}, []string{"--target", "PGAPPLY_TARGET"}},
		{"cleanup without a publisher", nil, []string{"cleanup", "--target", "dbname=b"}, []string{"--source", "--keep-slot"}},
		{"demo without time", nil, []string{"demo", "--duration", "0s"}, []string{"--duration"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := call(t, test.environment, test.arguments...)
			require.Equal(t, exitConfiguration, exitCode(c.err), "%v", c.err)
			var printed bytes.Buffer
			report(&printed, c.err, "")
			for _, text := range test.says {
				require.Contains(t, printed.String(), text)
			}
		})
	}
}

func TestPasswordOnTheCommandLineGetsAWarningAndIsNotShown(t *testing.T) {
	c := call(t, nil, run("--source", "postgres://me:hunter2@db/x", "--log-format", "json")...)
	require.NoError(t, c.err)
	require.Contains(t, c.log, "PGAPPLY_SOURCE")
	require.NotContains(t, c.log+c.out, "hunter2")

	c = call(t, map[string]string{"PGAPPLY_TARGET": "host=db password=hunter2"}, "run", "--source", "dbname=a", "--publication", "p", "--copy-data=false")
	require.NoError(t, c.err)
	require.Empty(t, c.log, "nobody sees it in the environment")
}

// A variable that is mistyped would otherwise be passed over in silence.
func TestVariablesThatNoFlagReads(t *testing.T) {
	environment := map[string]string{
		"PGAPPLY_SUORCE": "x", "PGAPPLY_DURATION": "1s", "PGAPPLY_TEST_MAJOR": "18", "PGAPPLY_CACHE": "/x", "PGAPPLY_PG_DIR_18": "/y", "PGAPPLY_LSN": "1/1",
	}
	c := call(t, environment, run("--log-format", "json")...)
	require.NoError(t, c.err)
	require.Contains(t, c.log, `"variable":"PGAPPLY_SUORCE"`)
	require.Equal(t, 1, strings.Count(c.log, "\n"), c.log)
	c = call(t, nil, "version")
	require.NoError(t, c.err)
	c = call(t, nil, "pause")
	require.Equal(t, "pgapply: warning: a variable in the environment stands in for no flag: PGAPPLY_SUORCE\n", c.log)
}

func TestHelpIsForPeople(t *testing.T) {
	c := call(t, nil)
	require.NoError(t, c.err, "help is no failure")
	for _, command := range []string{
		"run", "check", "status", "pause", "resume", "skip", "conflicts", "conflicts list", "conflicts show", "conflicts clear", "wait", "sequences", "cleanup", "config", "config print", "config sample", "demo", "version",
	} {
		words := strings.Fields(command)
		require.Contains(t, c.out, words[0])
		help := call(t, nil, append(words, "--help")...)
		require.NoError(t, help.err)
		require.Contains(t, help.out, "Usage:")
	}
	require.Contains(t, call(t, nil, "run", "--help").out, "PGAPPLY_NAME")
}

func TestVersion(t *testing.T) {
	c := call(t, nil, "version")
	require.NoError(t, c.err)
	require.Regexp(t, `^pgapply \S+\ncommit  .+\ngo      go1\.\d+`, c.out)
}

func TestExitCodes(t *testing.T) {
	require.Equal(t, 0, exitCode(nil))
	require.Equal(t, 1, exitCode(errors.New("x")))
	for class, code := range map[apply.Class]int{
		apply.Other: 1, apply.Configuration: 2, apply.Refused: 3, apply.Source: 4, apply.Target: 5, apply.Conflict: 6, apply.SlotLost: 7,
	} {
		require.Equal(t, code, exitCode(fmt.Errorf("wrapped: %w", &apply.Error{Class: class, Err: errors.New("x")})))
	}
	require.Equal(t, 8, exitCode(&demo.DifferenceError{Tables: []string{"t"}}))
}

func TestReportPrintsEachFaultAndTheRemedy(t *testing.T) {
	var printed bytes.Buffer
	report(&printed, &apply.Error{Err: errors.Join(errors.New("one"), errors.New("two")), Hint: "do this"}, "")
	require.Equal(t, "pgapply: one\npgapply: two\nhint: do this\n", printed.String())
	printed.Reset()
	report(&printed, &apply.Error{Err: errors.New("see `pgapply status`"), Hint: "`pgapply resume`"}, "crm")
	require.Equal(t, "pgapply: see `pgapply status --name crm`\nhint: `pgapply resume --name crm`\n", printed.String())
}
