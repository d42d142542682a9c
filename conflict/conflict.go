// Package conflict says what it means when a change meets something on the target
// that the publisher did not know of, and who wins.
//
//	what was found ──► Type ──► Policies.For ──► Decide ──► apply, keep, or fail
//
// The types are those of the native subscription from 18 on (conflict.h); the
// policies are ours. The package is pure: it looks at nothing and writes nothing.
package conflict

import (
	"encoding/json"
	"time"

	"pgapply/internal/lsn"
)

// Type is a kind of conflict, named as the native subscription names it.
type Type string

// The types of conflicts.
const (
	// InsertExists: the new row violates a unique index.
	InsertExists Type = "insert_exists"
	// UpdateExists: the changed row violates another unique index.
	UpdateExists Type = "update_exists"
	// MultipleUnique: an insert or update violates more than one.
	MultipleUnique Type = "multiple_unique_conflicts"
	// UpdateMissing and DeleteMissing: the row to change is not there.
	UpdateMissing Type = "update_missing"
	DeleteMissing Type = "delete_missing"
	// UpdateOriginDiffers and DeleteOriginDiffers: somebody else wrote the row last.
	UpdateOriginDiffers Type = "update_origin_differs"
	DeleteOriginDiffers Type = "delete_origin_differs"
	// UpdateDeleted: the row to update was deleted by somebody else. It has a name
	// and policies, as in version 19, and is never reported: no SQL function shows
	// dead rows. Such an update is UpdateMissing.
	UpdateDeleted Type = "update_deleted"
)

// Types lists all types in the order in which they are shown.
func Types() []Type {
	return []Type{
		InsertExists, UpdateExists, MultipleUnique, UpdateMissing, DeleteMissing,
		UpdateOriginDiffers, DeleteOriginDiffers, UpdateDeleted,
	}
}

// Conflict is one conflict with all that is known of it: enough to see what
// happened and to repair by hand what the resolution let go.
type Conflict struct {
	Type          Type
	Schema, Table string
	// RemoteXID, FinishLSN, RemoteTime and RemoteOrigin belong to the publisher's
	// transaction. RemoteOrigin is empty for one that began there.
	RemoteXID    uint32
	FinishLSN    lsn.LSN
	RemoteTime   time.Time
	RemoteOrigin string
	// ReplicaIdentity is what the row was searched by, RemoteTuple the new row:
	// JSON objects of the values' text; null where there is none.
	ReplicaIdentity, RemoteTuple json.RawMessage
	// Local are the rows of the target that are in the way.
	Local      []Local
	Policy     Policy
	Resolution Resolution
}

// Local is a row of the target that a conflict is about.
type Local struct {
	// Table is where the row is: of a partitioned table the partition.
	Table string `json:"table,omitempty"`
	// XID last wrote the row. CommitTime and Origin are known where the target
	// tracks commit timestamps; Origin is empty for a local write.
	XID        string     `json:"xid,omitempty"`
	CommitTime *time.Time `json:"commit_ts,omitempty"`
	Origin     string     `json:"origin,omitempty"`
	// Index is the unique index that both rows want the same place in.
	Index string          `json:"index,omitempty"`
	Key   json.RawMessage `json:"key,omitempty"`
	Tuple json.RawMessage `json:"tuple,omitempty"`
}

// Resolution is what became of the change.
type Resolution string

// The resolutions.
const (
	// Applied: the remote change was applied over what was there.
	Applied Resolution = "applied"
	// Skipped: there was nothing to apply the change to.
	Skipped Resolution = "skipped"
	// Kept: the local row was kept, and the change let go.
	Kept Resolution = "kept"
	// Failed: the transaction was rolled back and waits.
	Failed Resolution = "failed"
	// SkippedTransaction: a person asked for the whole transaction to be skipped.
	SkippedTransaction Resolution = "skipped_transaction"
)
