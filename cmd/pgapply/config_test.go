package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
)

// inFile writes a configuration file.
func inFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pgapply.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestFileStandsInForFlags(t *testing.T) {
	path := inFile(t, `
source: dbname=a
target: dbname=b
publication: [one, "two, three"]
binary: true
workers: 2
max-group-age: 2s
memory-limit: 5MiB
synchronous-commit: off
conflict-retention: 7d
on-conflict:
  insert_exists: keep_local
  "a.b, c":
    delete_missing: error
prepared: rollback   # of another command
`)
	c := call(t, map[string]string{"PGAPPLY_WORKERS": "3", "PGAPPLY_CONFIG": path}, "run", "--max-group-age", "3s")
	require.NoError(t, c.err)
	require.Equal(t, []string{"one", "two, three"}, c.options.Publications)
	require.Equal(t, []string{"a.b, c:delete_missing=error", "insert_exists=keep_local"}, c.options.OnConflict.Strings())
	require.True(t, c.options.Binary)
	require.Equal(t, int64(5<<20), c.options.MemoryLimit)
	require.Equal(t, "off", c.options.SynchronousCommit)
	require.Equal(t, 7*day, c.options.ConflictRetention)
	require.Equal(t, 3, c.options.Workers, "the environment wins")
	require.Equal(t, 3*time.Second, c.options.MaxGroup.Age, "the command line wins")

	other := inFile(t, "source: dbname=c\ntarget: dbname=d\npublication: []\n")
	c = call(t, map[string]string{"PGAPPLY_CONFIG": path}, "run", "--config", other, "--publication", "p")
	require.NoError(t, c.err)
	require.Equal(t, "dbname=c", c.options.Source, "the file that the command line names")
}

// Whoever starts it gets to know in one go what is wrong, wherever that is.
func TestAllFaultsAtOnce(t *testing.T) {
	path := inFile(t, "wokers: 4\ntable-jobs: several\npublication: shop\nyes: true\n")
	environment := map[string]string{"PGAPPLY_BINARY": "perhaps"}
	c := call(t, environment, "run", "--config", path, "--memory-limit", "lots", "--max-group-rows", "x", "--on-error", "shrug")
	require.Nil(t, c.options)
	require.Equal(t, 2, exitCode(c.err))
	var printed strings.Builder
	report(&printed, c.err, "")
	golden(t, "faults.txt", strings.ReplaceAll(printed.String(), path, "pgapply.yaml"))

	c = call(t, environment, "run", "--config", path, "--memory-limit", "lots", "--worker", "4")
	for _, says := range []string{"--memory-limit", "did you mean --workers?", "PGAPPLY_BINARY", "wokers", "table-jobs"} {
		require.ErrorContains(t, c.err, says)
	}

	c = call(t, nil, "status", "--config", filepath.Join(t.TempDir(), "nowhere.yaml"))
	require.ErrorContains(t, c.err, "--config: the configuration file cannot be read")
	c = call(t, map[string]string{"PGAPPLY_CONFIG": filepath.Join(t.TempDir(), "nowhere.yaml")}, "status")
	require.ErrorContains(t, c.err, "PGAPPLY_CONFIG: the configuration file cannot be read")
}

func TestConfigPrint(t *testing.T) {
	path := inFile(t, "source: postgres://me:hunter2@old/shop\npublication:\n  - shop\n  - stock\nlog-level: warn\n")
	environment := map[string]string{"PGAPPLY_TARGET": "host=new password=hunter2", "PGAPPLY_ENDPOS": "current"}
	c := call(t, environment, "config", "print", "--config", path, "--workers", "2")
	require.NoError(t, c.err)
	require.NotContains(t, c.out, "hunter2")
	for _, line := range []string{
		"source postgres://me:***@old/shop pgapply.yaml:1", "target host=new password=*** PGAPPLY_TARGET", "publication [shop, stock] pgapply.yaml:3",
		"workers 2 flag", "endpos current PGAPPLY_ENDPOS", "log-level warn pgapply.yaml:5", "slot - default", "max-batch 4MiB default",
	} {
		got := strings.ReplaceAll(strings.Join(strings.Fields(c.out), " "), path, "pgapply.yaml")
		require.Contains(t, got, line)
	}

	c = call(t, environment, "config", "print", "--config", path, "--workers", "2", "--json")
	require.NoError(t, c.err)
	var settings []shownSetting
	require.NoError(t, json.Unmarshal([]byte(c.out), &settings))
	byName := make(map[string]shownSetting)
	for _, setting := range settings {
		byName[setting.Name] = setting
	}
	require.Equal(t, shownSetting{Name: "source", Value: "postgres://me:***@old/shop", Origin: "file", Where: path + ":1"}, byName["source"])
	require.Equal(t, shownSetting{Name: "publication", Value: []any{"shop", "stock"}, Origin: "file", Where: path + ":3"}, byName["publication"])
	require.Equal(t, shownSetting{Name: "on-conflict", Value: []any{}, Origin: "default"}, byName["on-conflict"])
	require.Equal(t, shownSetting{Name: "workers", Value: "2", Origin: "flag"}, byName["workers"])
}

// What the sample shows are the defaults of run, in a form that run reads.
func TestConfigSampleSetsTheDefaults(t *testing.T) {
	c := call(t, nil, "config", "sample")
	require.NoError(t, c.err)
	lines := strings.Split(c.out, "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, "# ") {
			lines[i] = strings.TrimPrefix(line, "#")
		}
	}
	ran := call(t, nil, run("--config", inFile(t, strings.Join(lines, "\n")))...)
	require.NoError(t, ran.err)
	want := apply.DefaultOptions()
	want.Source, want.Target, want.Publications = "dbname=a", "dbname=b", []string{"p"}
	want.Version, want.Log = version, ran.options.Log
	require.Equal(t, want, *ran.options)
	require.NoError(t, call(t, nil, run("--config", inFile(t, c.out))...).err)
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	want, err := os.ReadFile("testdata/" + file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}
