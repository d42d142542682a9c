package pgtest

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgapply/internal/cluster"
)

// patience bounds everything that a test waits for. It is far above what any of
// it takes, so that a slow machine fails no test, and below the test timeout, so
// that the one which hangs says where.
const patience = 2 * time.Minute

// startPatience bounds a start, which may have to fetch the server first.
const startPatience = 5 * time.Minute

// Option changes how a server starts.
type Option func(*cluster.Options)

// OnMajor asks for a PostgreSQL major instead of the one of the environment.
func OnMajor(major int) Option {
	return func(o *cluster.Options) { o.Major = major }
}

// With gives a setting of postgresql.conf.
func With(name, value string) Option {
	return func(o *cluster.Options) { o.Settings[name] = value }
}

// Durable leaves fsync on, for tests that kill the server.
func Durable() Option {
	return func(o *cluster.Options) { o.Durable = true }
}

// Major returns the PostgreSQL major that PGAPPLY_TEST_MAJOR asks for, by default
// the newest.
func Major(t testing.TB) int {
	t.Helper()
	return majorOf(t, "PGAPPLY_TEST_MAJOR", cluster.NewestMajor)
}

func majorOf(t testing.TB, variable string, otherwise int) int {
	t.Helper()
	value := os.Getenv(variable)
	if value == "" {
		return otherwise
	}
	major, err := strconv.Atoi(value)
	if err != nil || major < 10 {
		t.Fatalf("%s=%q is not a PostgreSQL major such as %d", variable, value, cluster.NewestMajor)
	}
	return major
}

// Start starts a server for this test alone, of Major(t) unless an option says
// otherwise, and ends it with the test.
func Start(t testing.TB, options ...Option) *cluster.Cluster {
	t.Helper()
	server, err := start(t, Major(t), options)
	if err != nil {
		t.Fatal(err)
	}
	endWith(t, server)
	return server
}

// Pair starts two servers at once for this test alone. Unless an option names the
// major, PGAPPLY_TEST_PUBLISHER_MAJOR and PGAPPLY_TEST_TARGET_MAJOR do, else it is
// Major(t).
func Pair(t testing.TB, options ...Option) (publisher, target *cluster.Cluster) {
	t.Helper()
	publisher, target, err := startPair(t, options)
	for _, server := range []*cluster.Cluster{publisher, target} {
		if server != nil {
			endWith(t, server)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return publisher, target
}

// Standby starts a hot standby of a server, of major 15 or later, for this test alone. It
// has the primary's settings, but for those of the options.
func Standby(t testing.TB, primary *cluster.Cluster, options ...Option) *cluster.Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), startPatience)
	defer cancel()
	server, err := cluster.StartStandby(ctx, primary, optionsOf(0, options))
	if err != nil {
		t.Fatal(err)
	}
	endWith(t, server)
	return server
}

func startPair(t testing.TB, options []Option) (publisher, target *cluster.Cluster, err error) {
	t.Helper()
	publisherMajor := majorOf(t, "PGAPPLY_TEST_PUBLISHER_MAJOR", Major(t))
	targetMajor := majorOf(t, "PGAPPLY_TEST_TARGET_MAJOR", Major(t))
	var publisherErr, targetErr error
	var both sync.WaitGroup
	both.Go(func() { publisher, publisherErr = start(t, publisherMajor, options) })
	both.Go(func() { target, targetErr = start(t, targetMajor, options) })
	both.Wait()
	if publisherErr != nil {
		return publisher, target, fmt.Errorf("publisher: %w", publisherErr)
	}
	if targetErr != nil {
		return publisher, target, fmt.Errorf("target: %w", targetErr)
	}
	return publisher, target, nil
}

func start(t testing.TB, major int, options []Option) (*cluster.Cluster, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), startPatience)
	defer cancel()
	return cluster.Start(ctx, optionsOf(major, options))
}

func optionsOf(major int, options []Option) cluster.Options {
	o := cluster.Options{Major: major, Settings: map[string]string{}, Progress: func(what string) {
		// Past go test's habit of showing nothing of tests that pass: a fetch takes
		// time, and another major than the wanted one must not go unnoticed.
		fmt.Fprintln(os.Stderr, "pgtest:", what)
	}}
	for _, option := range options {
		option(&o)
	}
	return o
}

// endWith ends the server with the test.
func endWith(t testing.TB, server *cluster.Cluster) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			dumpLog(t, server, 0)
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
}

// dumpLog prints what the server has logged since an offset.
func dumpLog(t testing.TB, server *cluster.Cluster, offset int64) {
	t.Helper()
	const most = 100
	said, err := server.Log(offset)
	if err != nil {
		t.Log(err)
		return
	}
	lines := strings.Split(strings.TrimSpace(said), "\n")
	t.Logf("PostgreSQL %s on port %d logged (at most %d last lines):\n%s", server.Installation().Version, server.Port(), most,
		strings.Join(lines[max(0, len(lines)-most):], "\n"))
}
