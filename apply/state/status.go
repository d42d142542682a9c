package state

import (
	"time"

	"pgapply/conflict"
	"pgapply/internal/lsn"
)

// Phase is what a runner is doing.
type Phase string

// The phases of a runner.
const (
	// Starting: connecting, checking, creating what is missing.
	Starting Phase = "starting"
	// Waiting: another runner, or somebody else, holds lock, origin or slot, or the
	// slot that is created waits for the publisher's transactions.
	Waiting Phase = "waiting"
	// Streaming: receiving and applying.
	Streaming Phase = "streaming"
	// Copying: tables are copied before the stream begins.
	Copying Phase = "copying"
	// Retrying: an error occurred; the next attempt follows by itself.
	Retrying Phase = "retrying"
	// Paused: an error, or a person, has paused the subscription.
	Paused Phase = "paused"
	// Stopped: ended, or about to.
	Stopped Phase = "stopped"
)

// Status is a snapshot of one subscription as its runner sees it. It is what
// the runner row holds, what the HTTP server serves and what `status` shows.
// The JSON names are stable: fields are added, never renamed.
type Status struct {
	Subscription string `json:"subscription"`
	Phase        Phase  `json:"state"`
	// Since is when Phase began; UpdatedAt is when the snapshot was taken. Both
	// by the runner's clock.
	Since     time.Time `json:"state_since"`
	UpdatedAt time.Time `json:"updated_at"`
	// WaitingFor says what a runner in phase Waiting waits for, or while it streams what
	// tables wait for that are to be copied.
	WaitingFor string `json:"waiting_for,omitempty"`

	Publisher Publisher     `json:"publisher"`
	Stream    StreamOptions `json:"stream"`

	// Positions in the publisher's WAL: the end of what was read from the socket,
	// of what is committed on the target, of what is durable there, and what the
	// publisher was told.
	Received     Position `json:"received_lsn"`
	Applied      Position `json:"applied_lsn"`
	Flushed      Position `json:"flushed_lsn"`
	Acknowledged Position `json:"acknowledged_lsn"`
	// LagBytes is how much WAL was received and is not applied. LagSeconds is how old the
	// oldest transaction of it is that has committed, at UpdatedAt; 0 where none has.
	LagBytes   int64   `json:"lag_bytes"`
	LagSeconds float64 `json:"lag_seconds"`
	// LastCommitTime is when the last applied transaction committed on the publisher,
	// OldestCommitTime when the oldest did that is received and not applied; both by the
	// publisher's clock.
	LastCommitTime   *time.Time `json:"last_commit_time,omitempty"`
	OldestCommitTime *time.Time `json:"oldest_unapplied_commit_time,omitempty"`

	// Counters since the runner started.
	Transactions int64 `json:"transactions"`
	Groups       int64 `json:"groups"`
	// Replays counts the groups that did not go as expected and were applied in smaller ones.
	Replays int64 `json:"replays"`
	// ParallelGroups counts the groups that a worker applied beside those before them,
	// ParallelReplays those that it could not, and that were applied at their turn.
	ParallelGroups  int64 `json:"parallel_groups"`
	ParallelReplays int64 `json:"parallel_replays"`

	Rows   Rows   `json:"rows"`
	Misses Misses `json:"misses"`
	// Workers are the sessions that apply. The first one does so in the order of
	// commits, the others ahead of their turn.
	Workers []Worker `json:"workers,omitempty"`
	// RowByRow are the tables that had changes and whose changes are applied one by one,
	// since something on them could tell.
	RowByRow []RowByRow `json:"row_by_row,omitempty"`
	// Conflicts counts by type those that were resolved.
	Conflicts map[conflict.Type]int64 `json:"conflicts,omitempty"`
	// Messages counts logical messages, where they are asked for.
	Messages int64 `json:"messages"`
	Retries  int64 `json:"retries"`

	MemoryBytes int64 `json:"memory_bytes"`
	MemoryLimit int64 `json:"memory_limit_bytes"`
	SpoolBytes  int64 `json:"spool_bytes"`
	SpoolLimit  int64 `json:"spool_limit_bytes"`
	OpenStreams int   `json:"open_streams"`

	// TargetSilentSince is since when the target owes the runner an answer, where that has
	// been so for long. The row cannot say it: this is for who asks the runner by HTTP.
	TargetSilentSince *time.Time `json:"target_silent_since,omitempty"`

	LastError     string     `json:"last_error,omitempty"`
	LastErrorHint string     `json:"last_error_hint,omitempty"`
	LastErrorAt   *time.Time `json:"last_error_at,omitempty"`

	// Tables counts the subscription's tables by the letter of their state.
	Tables map[string]int `json:"tables"`
	// Copy is how far the copy of tables is that goes on now.
	Copy *Copy `json:"copy,omitempty"`
}

// Copy is how far a copy of tables is.
type Copy struct {
	Since time.Time `json:"since"`
	// Tables of which Done are copied and Failed are given up for now.
	Tables int `json:"tables"`
	Done   int `json:"done"`
	Failed int `json:"failed"`
	// Rows and Bytes are those copied so far; EstimatedRows is what the publisher's
	// statistics make of all tables.
	Rows          int64 `json:"rows"`
	Bytes         int64 `json:"bytes"`
	EstimatedRows int64 `json:"estimated_rows"`
	// Share estimates how much is done, from 0 to 1.
	Share float64 `json:"share"`
	// Running are the tables in work.
	Running []CopyTable `json:"running,omitempty"`
}

// CopyTable is a table in work.
type CopyTable struct {
	Table         string `json:"table"`
	Rows          int64  `json:"rows"`
	Bytes         int64  `json:"bytes"`
	EstimatedRows int64  `json:"estimated_rows"`
	// Share estimates how much is done, from 0 to 1.
	Share     float64 `json:"share"`
	Parts     int     `json:"parts"`
	PartsDone int     `json:"parts_done"`
}

// Left estimates how long the copy takes from then on; 0 where nothing can be said yet.
func (c *Copy) Left(at time.Time) time.Duration {
	const enough = 0.01
	elapsed := at.Sub(c.Since)
	if c.Share < enough || c.Share >= 1 || elapsed <= 0 {
		return 0
	}
	return time.Duration(float64(elapsed) * (1 - c.Share) / c.Share)
}

// Rate is how many bytes were copied in a second so far.
func (c *Copy) Rate(at time.Time) float64 {
	if elapsed := at.Sub(c.Since); elapsed > 0 && !c.Since.IsZero() {
		return float64(c.Bytes) / elapsed.Seconds()
	}
	return 0
}

// Publisher is the server that the changes come from.
type Publisher struct {
	// Version is server_version_num, such as 180004.
	Version  int    `json:"server_version"`
	SystemID string `json:"system_id"`
	Timeline int32  `json:"timeline"`
	Database string `json:"database"`
}

// StreamOptions are what the stream was really started with, after lowering to
// what the publisher's major knows.
type StreamOptions struct {
	Slot         string   `json:"slot"`
	Publications []string `json:"publications"`
	Protocol     int      `json:"protocol"`
	Streaming    string   `json:"streaming"`
	TwoPhase     bool     `json:"two_phase"`
	Binary       bool     `json:"binary"`
	Origin       string   `json:"origin"`
	// Progress is where the target keeps how far it is: "origin" or "table".
	Progress ProgressIn `json:"progress"`
	// Fires tells that triggers, rules and foreign keys of the target fire.
	Fires bool `json:"triggers_fire"`
}

// Rows counts changes that were applied and committed.
type Rows struct {
	Inserted  int64 `json:"inserted"`
	Updated   int64 `json:"updated"`
	Deleted   int64 `json:"deleted"`
	Truncated int64 `json:"truncated"`
}

// Misses counts changes whose row was not found on the target.
type Misses struct {
	Update int64 `json:"update_missing"`
	Delete int64 `json:"delete_missing"`
}

// RowByRow is a table whose changes are not merged.
type RowByRow struct {
	Table  string `json:"table"`
	Reason string `json:"reason"`
}

// Worker is what a session that applies is doing.
type Worker struct {
	Number int    `json:"worker"`
	PID    uint32 `json:"pid"`
	// State is idle, applying, waiting, finishing or rolling back, since when.
	State string    `json:"state"`
	Since time.Time `json:"state_since"`
	// XID is the publisher's transaction in progress, of which Changes are applied so far.
	XID     uint32 `json:"xid,omitempty"`
	Changes int64  `json:"changes,omitempty"`
	// Transactions is how many the group has that it applies.
	Transactions int    `json:"transactions,omitempty"`
	WaitingFor   string `json:"waiting_for,omitempty"`
}

// SetLag computes both lags from Received, Applied and OldestCommitTime.
func (s *Status) SetLag(now time.Time) {
	s.LagBytes, s.LagSeconds = 0, 0
	if s.Received <= s.Applied {
		return
	}
	s.LagBytes = int64(s.Received - s.Applied)
	if s.OldestCommitTime != nil {
		s.LagSeconds = max(0, now.Sub(*s.OldestCommitTime).Seconds())
	}
}

// CountTables counts tables by the letter of their state, for Status.Tables.
func CountTables(tables []Table) map[string]int {
	counts := make(map[string]int)
	for _, table := range tables {
		counts[string(rune(table.State))]++
	}
	return counts
}

// Position is an LSN whose JSON is the text that PostgreSQL prints.
type Position lsn.LSN

func (p Position) String() string { return lsn.LSN(p).String() }

// MarshalText implements encoding.TextMarshaler.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Position) UnmarshalText(text []byte) error {
	position, err := lsn.Parse(string(text))
	*p = Position(position)
	return err
}
