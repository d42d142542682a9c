package operate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply/state"
)

func TestNamed(t *testing.T) {
	for text, want := range map[string]string{
		"see `pgapply status`": "see `pgapply status --name crm`",
		"`pgapply conflicts show 1`, then `pgapply skip --lsn 0/1`":            "`pgapply conflicts show --name crm 1`, then `pgapply skip --name crm --lsn 0/1`",
		"look at `pgapply conflicts`":                                          "look at `pgapply conflicts --name crm`",
		"`pgapply status --name other`, `pgapply verify --help` lists it":      "`pgapply status --name other`, `pgapply verify --help` lists it",
		"`pgapply init --role ROLE` grants it, `pgapply config sample` writes": "`pgapply init --role ROLE` grants it, `pgapply config sample` writes",
		"pgapply status is not quoted, `pgapply statuses` is none":             "pgapply status is not quoted, `pgapply statuses` is none",
	} {
		require.Equal(t, want, Named(text, "crm"))
		require.Equal(t, want, Named(want, "crm"), "once is enough")
		require.Equal(t, text, Named(text, "pgapply"), "the default")
	}
}

// Everything that a report recommends can be typed as it stands.
func TestReportNamesTheSubscription(t *testing.T) {
	report := newReport("crm", state.Target{}, observation{
		subscription: &state.Subscription{LastError: "see `pgapply status`", LastErrorHint: "`pgapply resume`"},
		tables:       []state.Table{{Text: "public.t", State: state.TableInit, LastError: "`pgapply resync` it"}},
	})
	report.ListTables()
	require.Equal(t, "see `pgapply status --name crm`", report.LastError)
	require.Equal(t, "`pgapply resume --name crm`", report.LastErrorHint)
	require.Equal(t, "`pgapply resync --name crm` it", report.AllTables[0].LastError)
	require.Contains(t, report.Problems, "the subscription is paused: `pgapply resume --name crm` lets it go on")
	switching := Switching{Report: report, wanted: state.Paused}
	require.Contains(t, switching.Text(), "waits until `pgapply resume --name crm`")
}
