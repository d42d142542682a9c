package decoder

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

// The golden files hold what servers of these majors really sent, in hexadecimal,
// and how it is decoded. They are read without any server. With
//
//	go test ./decoder -run TestGolden -rewrite
//
// they are captured anew: a server of each major runs the workload. Transaction
// ids, positions, oids and times then differ from before; types and order of
// messages should not.
func goldenMajors() []int { return []int{10, 14, 15, 16, 18} }

func goldenDirectory(major int) string { return filepath.Join("testdata", strconv.Itoa(major)) }

func TestGolden(t *testing.T) {
	// The flag belongs to datadriven, which has it write what was decoded.
	rewrite := flag.Lookup("rewrite").Value.(flag.Getter).Get().(bool)
	for _, major := range goldenMajors() {
		t.Run(strconv.Itoa(major), func(t *testing.T) {
			if rewrite {
				rewriteGoldens(t, major)
			}
			files := goldenFiles(t, major)
			require.NotEmpty(t, files)
			for _, file := range files {
				t.Run(strings.TrimSuffix(filepath.Base(file), ".golden"), func(t *testing.T) { testGolden(t, file) })
			}
		})
	}
}

// testGolden decodes a captured stream with one decoder. Every frame must also
// be what its message encodes to, and what pglogrepl reads.
func testGolden(t *testing.T, path string) {
	var decoder Decoder
	datadriven.RunTest(t, path, func(t *testing.T, data *datadriven.TestData) string {
		var decoded strings.Builder
		for _, frame := range parseFrames(t, data.Input) {
			inStream := decoder.InStream()
			message, err := decoder.Decode(frame)
			require.NoError(t, err)
			decoded.WriteString(render(message) + "\n")
			require.Equal(t, frame, encode(message, inStream))
			if pglogreplKnows(message) {
				requireAgreement(t, frame, inStream, message)
			}
		}
		return decoded.String()
	})
	require.False(t, decoder.InStream())
}

// The captures must go on showing what they are for.
func TestGoldenCoverage(t *testing.T) {
	const (
		protocol1 = "BCORYIUD"
		since11   = protocol1 + "T"
		protocol2 = since11 + "MSEcA"
		protocol3 = protocol2 + "bPKrp"
	)
	for major, types := range map[int]string{10: protocol1, 14: protocol2, 15: protocol3, 16: protocol3, 18: protocol3} {
		t.Run(strconv.Itoa(major), func(t *testing.T) {
			seen := map[string]bool{}
			for _, file := range goldenFiles(t, major) {
				content, err := os.ReadFile(file)
				require.NoError(t, err)
				var decoder Decoder
				var streamed uint32
				for _, frame := range slices.Concat(goldenBlocks(t, string(content))...) {
					message, err := decoder.Decode(frame)
					require.NoError(t, err)
					noteForms(seen, message, decoder.InStream())
					switch m := message.(type) {
					case *StreamStart:
						streamed = m.XID
					case *Insert:
						seen["change of a subtransaction"] = seen["change of a subtransaction"] || m.XID != 0 && m.XID != streamed
					}
				}
			}
			for _, messageType := range []byte(types) {
				require.True(t, seen[Type(messageType).String()], "%s is in no capture", Type(messageType))
			}
			for _, form := range []string{
				"identity d", "identity n", "identity f", "identity i", "no columns", "namespace left out",
				"old key", "old row", "value n", "value u", "value t",
			} {
				require.True(t, seen[form], form)
			}
			if major >= 14 {
				for _, form := range []string{
					"value b", "RELATION in a stream", "TYPE in a stream", "INSERT in a stream", "UPDATE in a stream",
					"DELETE in a stream", "TRUNCATE in a stream", "MESSAGE in a stream", "ORIGIN in a stream",
					"truncate cascade", "truncate restart identity", "message transactional", "message not transactional",
					"abort of a transaction", "abort of a subtransaction", "change of a subtransaction",
				} {
					require.True(t, seen[form], form)
				}
			}
			require.Equal(t, major >= 16, seen["abort with position"])
		})
	}
}

// noteForms adds the forms in which a message appears.
func noteForms(seen map[string]bool, message Message, inStream bool) {
	seen[message.Type().String()] = true
	if inStream {
		seen[message.Type().String()+" in a stream"] = true
	}
	tuple := func(tuple Tuple) {
		for _, value := range tuple {
			seen["value "+string(value.Kind)] = true
		}
	}
	old := map[OldKind]string{OldNone: "no old row", OldKey: "old key", OldFull: "old row"}
	switch m := message.(type) {
	case *Relation:
		seen["identity "+string(m.ReplicaIdentity)] = true
		seen["no columns"] = seen["no columns"] || len(m.Columns) == 0
	case *TypeMessage:
		seen["namespace left out"] = seen["namespace left out"] || m.Namespace == "pg_catalog"
	case *Insert:
		tuple(m.New)
	case *Update:
		seen[old[m.OldKind]] = true
		tuple(m.Old)
		tuple(m.New)
	case *Delete:
		seen[old[m.OldKind]] = true
		tuple(m.Old)
	case *Truncate:
		seen["truncate cascade"] = seen["truncate cascade"] || m.Cascade
		seen["truncate restart identity"] = seen["truncate restart identity"] || m.RestartIdentity
	case *LogicalMessage:
		seen["message "+map[bool]string{true: "transactional", false: "not transactional"}[m.Transactional]] = true
	case *StreamAbort:
		seen["abort of a "+map[bool]string{true: "transaction", false: "subtransaction"}[m.XID == m.SubXID]] = true
		seen["abort with position"] = seen["abort with position"] || m.HasPosition
	}
}

func goldenFiles(t testing.TB, major int) []string {
	files, err := filepath.Glob(filepath.Join(goldenDirectory(major), "*.golden"))
	require.NoError(t, err)
	return files
}

// goldenDirectives writes frames in the form that datadriven reads: one directive
// for every transaction, block or lone message.
func goldenDirectives(frames [][]byte) string {
	var b strings.Builder
	open := false
	for _, frame := range frames {
		if !open {
			b.WriteString("\ndecode\n")
			open = true
		}
		b.WriteString(hex.EncodeToString(frame) + "\n")
		switch Type(frame[0]) {
		case TypeCommit, TypeStreamStop, TypeStreamCommit, TypeStreamAbort,
			TypePrepare, TypeStreamPrepare, TypeCommitPrepared, TypeRollbackPrepared:
			b.WriteString("----\n")
			open = false
		}
	}
	return b.String()
}

// goldenBlocks is the inverse of goldenDirectives; it skips what was decoded.
func goldenBlocks(t testing.TB, content string) [][][]byte {
	var blocks [][][]byte
	for _, block := range strings.Split(content, "\ndecode\n")[1:] {
		input, _, found := strings.Cut(block, "\n----\n")
		require.True(t, found, "directive without an end")
		blocks = append(blocks, parseFrames(t, input))
	}
	return blocks
}

func parseFrames(t testing.TB, input string) [][]byte {
	var frames [][]byte
	for _, line := range strings.Fields(input) {
		frame, err := hex.DecodeString(line)
		require.NoError(t, err)
		frames = append(frames, frame)
	}
	return frames
}
