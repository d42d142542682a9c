package decoder

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// render shows all fields of a message on one line, in the form that the golden
// files hold. Long values are shortened.
func render(message Message) string {
	var b strings.Builder
	b.WriteString(message.Type().String())
	field := func(name, format string, arguments ...any) {
		fmt.Fprintf(&b, " "+name+"="+format, arguments...)
	}
	stamp := func(name string, at Timestamp) {
		field(name, "%s", at.Time().Format(time.RFC3339Nano))
	}
	xid := func(xid uint32) {
		if xid != 0 {
			field("xid", "%d", xid)
		}
	}
	prepare := func(p Prepare) {
		field("prepare", "%s", p.PrepareLSN)
		field("end", "%s", p.EndLSN)
		stamp("time", p.PrepareTime)
		field("xid", "%d", p.XID)
		field("gid", "%q", p.GID)
	}
	switch m := message.(type) {
	case *Begin:
		field("final", "%s", m.FinalLSN)
		stamp("time", m.CommitTime)
		field("xid", "%d", m.XID)
	case *Commit:
		field("commit", "%s", m.CommitLSN)
		field("end", "%s", m.EndLSN)
		stamp("time", m.CommitTime)
	case *Origin:
		field("lsn", "%s", m.LSN)
		field("name", "%q", m.Name)
	case *Relation:
		xid(m.XID)
		field("id", "%d", m.ID)
		field("name", "%q.%q", m.Namespace, m.Name)
		field("identity", "%c", m.ReplicaIdentity)
		var columns []string
		for _, column := range m.Columns {
			key := ""
			if column.Key {
				key = " key"
			}
			columns = append(columns, fmt.Sprintf("%q type %d/%d%s", column.Name, column.TypeOID, column.TypeModifier, key))
		}
		field("columns", "(%s)", strings.Join(columns, ", "))
	case *TypeMessage:
		xid(m.XID)
		field("oid", "%d", m.OID)
		field("name", "%q.%q", m.Namespace, m.Name)
	case *Insert:
		xid(m.XID)
		field("relation", "%d", m.RelationID)
		field("new", "%s", renderTuple(m.New))
	case *Update:
		xid(m.XID)
		field("relation", "%d", m.RelationID)
		if m.OldKind != OldNone {
			field("old", "%c%s", m.OldKind, renderTuple(m.Old))
		}
		field("new", "%s", renderTuple(m.New))
	case *Delete:
		xid(m.XID)
		field("relation", "%d", m.RelationID)
		field("old", "%c%s", m.OldKind, renderTuple(m.Old))
	case *Truncate:
		xid(m.XID)
		if m.Cascade {
			b.WriteString(" cascade")
		}
		if m.RestartIdentity {
			b.WriteString(" restart_identity")
		}
		field("relations", "%d", m.RelationIDs)
	case *LogicalMessage:
		xid(m.XID)
		if m.Transactional {
			b.WriteString(" transactional")
		}
		field("lsn", "%s", m.LSN)
		field("prefix", "%q", m.Prefix)
		field("content", "%s", renderData(m.Content))
	case *StreamStart:
		field("xid", "%d", m.XID)
		if m.First {
			b.WriteString(" first")
		}
	case *StreamStop:
	case *StreamCommit:
		field("xid", "%d", m.XID)
		field("commit", "%s", m.CommitLSN)
		field("end", "%s", m.EndLSN)
		stamp("time", m.CommitTime)
	case *StreamAbort:
		field("xid", "%d", m.XID)
		field("subxid", "%d", m.SubXID)
		if m.HasPosition {
			field("abort", "%s", m.AbortLSN)
			stamp("time", m.AbortTime)
		}
	case *BeginPrepare:
		prepare(Prepare(*m))
	case *Prepare:
		prepare(*m)
	case *StreamPrepare:
		prepare(Prepare(*m))
	case *CommitPrepared:
		field("commit", "%s", m.CommitLSN)
		field("end", "%s", m.EndLSN)
		stamp("time", m.CommitTime)
		field("xid", "%d", m.XID)
		field("gid", "%q", m.GID)
	case *RollbackPrepared:
		field("prepare_end", "%s", m.PrepareEndLSN)
		field("rollback_end", "%s", m.RollbackEndLSN)
		stamp("prepare_time", m.PrepareTime)
		stamp("rollback_time", m.RollbackTime)
		field("xid", "%d", m.XID)
		field("gid", "%q", m.GID)
	default:
		panic(fmt.Sprintf("render does not know %T", message))
	}
	return b.String()
}

func renderTuple(tuple Tuple) string {
	values := make([]string, len(tuple))
	for i, value := range tuple {
		switch value.Kind {
		case Null:
			values[i] = "NULL"
		case Unchanged:
			values[i] = "unchanged"
		case Text:
			values[i] = renderData(value.Data)
		case Binary:
			values[i] = fmt.Sprintf("0x%x", value.Data)
		}
	}
	return "(" + strings.Join(values, ", ") + ")"
}

func renderData(data []byte) string {
	const most = 80
	if len(data) > most {
		return fmt.Sprintf("%q... of %d bytes", data[:20], len(data))
	}
	if !utf8.Valid(data) {
		return fmt.Sprintf("0x%x", data)
	}
	return fmt.Sprintf("%q", data)
}
