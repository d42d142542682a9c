package faultnet

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What is sent before an answer comes is one turn, and a traced connection is known by its name.
func TestTrace(t *testing.T) {
	p := startProxy(t, startBackend(t))
	connect(t, p)
	trace := p.Trace()
	require.Empty(t, trace.Conversations())
	conn, err := dial(t, p, "sslmode=disable&application_name=orders")
	require.NoError(t, err)
	require.NoError(t, conn.Exec(t.Context(), "BEGIN; SELECT 1").Close())
	pipeline := conn.StartPipeline(t.Context())
	pipeline.SendQueryParams("SELECT 2", nil, nil, nil, nil)
	pipeline.SendQueryParams("COMMIT", nil, nil, nil, nil)
	require.NoError(t, pipeline.Sync())
	require.NoError(t, pipeline.Close())
	require.Equal(t, []Conversation{{
		Application: "orders",
		Turns:       [][]string{{"login"}, {"BEGIN; SELECT 1"}, {"SELECT 2", "!", "COMMIT", "!"}},
	}}, trace.Conversations())
	require.Equal(t, "orders: 3 turns\n    1  login\n    2  BEGIN; SELECT 1\n    3  SELECT 2; !; COMMIT; !\n", trace.Conversations()[0].String())
}
