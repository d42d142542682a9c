package httpd

import (
	"embed"
	"encoding/json"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
)

//go:embed page
var page embed.FS

// handler is all that the server answers.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", s.health)
	mux.HandleFunc("/readyz", s.ready)
	mux.Handle("/metrics", s.door.private(s.source.Metrics()))
	mux.Handle("/status", s.door.private(answer(func(*http.Request) any { return s.source.Status() })))
	mux.Handle("/conflicts", s.door.private(answer(func(*http.Request) any {
		return map[string]any{"values": s.door.showsValues(), "conflicts": s.source.Conflicts(s.door.showsValues())}
	})))
	mux.Handle("/history", s.door.private(answer(func(r *http.Request) any {
		after, _ := strconv.ParseInt(r.FormValue("after"), 10, 64) // 0, which is all, for nonsense
		return s.history.after(after)
	})))
	// The page itself holds nothing but the way to ask for a token.
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // the name is written above
	}
	static := http.FileServerFS(files)
	mux.Handle("/{$}", static)
	mux.Handle("/page.js", static)
	mux.Handle("/plot.js", static)
	mux.Handle("/format.js", static)
	mux.Handle("/page.css", static)
	mux.Handle("/icon.svg", static)
	return s.door.everyone(mux)
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if err := s.source.Stuck(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	say(w, "ok\n")
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	if reasons := s.source.WhyNotReady(s.door.knows(r)); len(reasons) > 0 {
		http.Error(w, "not ready: "+strings.Join(reasons, "\nnot ready: "), http.StatusServiceUnavailable)
		return
	}
	say(w, "ready\n")
}

func say(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(text)) // who has gone away does not want it
}

// answer serves a value as JSON.
func answer(value func(*http.Request) any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := json.MarshalIndent(value(r), "", "  ")
		if err != nil {
			http.Error(w, "the answer has no JSON: "+err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(text, '\n')) // who has gone away does not want it
	})
}
