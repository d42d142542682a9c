package origin

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"pgapply/internal/lsn"
)

func TestTracker(t *testing.T) {
	tracker := NewTracker(100, 120)
	require.Equal(t, Position{Reached: 120, Transaction: 100}, tracker.Durable())
	require.False(t, tracker.Pending())

	tracker.Committed(200)
	require.True(t, tracker.Pending())
	require.Equal(t, lsn.LSN(200), tracker.Applied().Reached)
	require.Equal(t, lsn.LSN(120), tracker.Durable().Reached, "a commit is not durable because it was replied to")

	tracker.Idle(250)
	require.Equal(t, lsn.LSN(120), tracker.Durable().Reached, "a keepalive must not overtake the commit before it")

	tracker.Sample(tracker.Applied(), 1000, 999)
	require.True(t, tracker.Pending())
	tracker.Committed(300)
	tracker.Sample(tracker.Applied(), 1100, 1000)
	require.Equal(t, Position{Reached: 250, Transaction: 200}, tracker.Durable())
	tracker.Sample(tracker.Applied(), 1100, 1100)
	require.Equal(t, Position{Reached: 300, Transaction: 300}, tracker.Durable())
	require.False(t, tracker.Pending())

	tracker.Idle(400)
	require.Equal(t, Position{Reached: 400, Transaction: 300}, tracker.Durable(), "nothing waits: what is idle is durable")

	tracker.Committed(500)
	tracker.AllDurable()
	require.Equal(t, Position{Reached: 500, Transaction: 500}, tracker.Durable())
}

func TestTrackerTellsOfChanges(t *testing.T) {
	tracker := NewTracker(0, 0)
	changed := func() bool {
		select {
		case <-tracker.Changed():
			return true
		default:
			return false
		}
	}
	require.False(t, changed())
	tracker.Committed(10)
	tracker.Idle(20)
	require.True(t, changed())
	require.False(t, changed())
	tracker.Idle(20)
	require.False(t, changed(), "nothing moved")
}

// TestTrackerNeverRunsAhead checks invariant I1 against a target that is modelled
// as a list of commits with their local positions: whatever is called durable is
// flushed, and it never goes back.
func TestTrackerNeverRunsAhead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tracker := NewTracker(0, 0)
		type commit struct{ end, local lsn.LSN }
		var commits []commit
		var remote, local, flushed lsn.LSN
		var before Position
		t.Repeat(map[string]func(*rapid.T){
			"commit": func(t *rapid.T) {
				remote += lsn.LSN(rapid.IntRange(1, 9).Draw(t, "remote"))
				local += lsn.LSN(rapid.IntRange(1, 9).Draw(t, "local"))
				commits = append(commits, commit{remote, local})
				tracker.Committed(remote)
			},
			"keepalive": func(t *rapid.T) {
				remote += lsn.LSN(rapid.IntRange(0, 9).Draw(t, "remote"))
				tracker.Idle(remote)
			},
			"flush": func(t *rapid.T) {
				flushed += lsn.LSN(rapid.IntRange(0, int(local-flushed)).Draw(t, "flushed"))
			},
			"sample": func(*rapid.T) {
				var last lsn.LSN
				if len(commits) > 0 {
					last = commits[len(commits)-1].local
				}
				tracker.Sample(tracker.Applied(), last, flushed)
			},
			"": func(t *rapid.T) {
				durable := tracker.Durable()
				for _, c := range commits {
					if c.end <= durable.Reached && c.local > flushed {
						t.Fatalf("durable up to %v, but the commit that ends at %v is flushed only beyond %v, and the target is at %v", durable, c.end, c.local, flushed)
					}
				}
				if durable.Reached < before.Reached || durable.Transaction < before.Transaction {
					t.Fatalf("durable went back from %v to %v", before, durable)
				}
				before = durable
			},
		})
		flushed = local
		if len(commits) > 0 {
			tracker.Sample(tracker.Applied(), commits[len(commits)-1].local, flushed)
		}
		if tracker.Pending() || tracker.Durable() != tracker.Applied() {
			t.Fatalf("all is flushed, but durable is %v and applied %v", tracker.Durable(), tracker.Applied())
		}
	})
}
