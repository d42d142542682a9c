package source

import (
	"fmt"
	"testing"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// forEachMajor runs a test with a server of each of the majors, all of one test
// with the same servers.
func forEachMajor(t *testing.T, majors []int, test func(t *testing.T, server *cluster.Cluster)) {
	for _, major := range majors {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			server := pgtest.SharedServer(t)
			if server.Major() != major {
				server = pgtest.Start(t, pgtest.OnMajor(major))
			}
			test(t, server)
		})
	}
}
