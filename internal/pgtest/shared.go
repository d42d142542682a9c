package pgtest

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"pgapply/internal/cluster"
)

// shared holds the servers that outlive single tests of this process. A test
// binary has no other place to keep them: every test gets its own testing.TB, and
// only TestMain sees the end.
var shared struct {
	sync.Mutex
	publisher, target *cluster.Cluster
}

// Shared returns a pair of servers for all tests of the package, started by the
// first one. Tests keep apart by using databases of their own, see Database. The
// package's TestMain must call Main.
func Shared(t testing.TB) (publisher, target *cluster.Cluster) {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	publisher = lend(t, &shared.publisher, "PGAPPLY_TEST_PUBLISHER_MAJOR")
	target = lend(t, &shared.target, "PGAPPLY_TEST_TARGET_MAJOR")
	return publisher, target
}

// SharedServer returns one server for all tests of the package: the publisher of
// Shared, for those that need no second one.
func SharedServer(t testing.TB) *cluster.Cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	return lend(t, &shared.publisher, "PGAPPLY_TEST_PUBLISHER_MAJOR")
}

func lend(t testing.TB, place **cluster.Cluster, variable string) *cluster.Cluster {
	t.Helper()
	if *place == nil {
		server, err := start(t, majorOf(t, variable, Major(t)), nil)
		if err != nil {
			t.Fatal(err)
		}
		*place = server
	}
	server := *place
	offset := server.LogSize()
	t.Cleanup(func() {
		if t.Failed() {
			dumpLog(t, server, offset)
		}
	})
	return server
}

// Main runs the tests of a package, ends the shared servers, checks that no
// goroutine is left, and exits:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
func Main(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	shared.Lock()
	defer shared.Unlock()
	for _, server := range []*cluster.Cluster{shared.publisher, shared.target} {
		if server == nil {
			continue
		}
		if err := server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			code = max(code, 1)
		}
	}
	// A failed test may have ended before it waited for its goroutines.
	if code == 0 {
		if err := goleak.Find(options...); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			code = 1
		}
	}
	os.Exit(code)
}
