package httpd

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// door decides who may see what.
type door struct {
	// guarded: a token is wanted, whose hash this is.
	guarded bool
	hash    [sha256.Size]byte
	// loopback: only this machine reaches the server.
	loopback bool
}

func newDoor(token string, loopback bool) door {
	return door{guarded: token != "", hash: sha256.Sum256([]byte(token)), loopback: loopback}
}

// knows tells whether a request brings the token, or needs none.
func (d *door) knows(r *http.Request) bool {
	if !d.guarded {
		return true
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	hash := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(hash[:], d.hash[:]) == 1
}

// showsValues tells whether those that are let in see the values of rows: who has the
// token, or an account on this machine.
func (d *door) showsValues() bool { return d.guarded || d.loopback }

// private lets in those that may see the status.
func (d *door) private(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !d.knows(r) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="pgapply"`)
			http.Error(w, "a token is needed: Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// everyone is what holds for each request: it reads, and a browser shows what it gets to
// nobody else's page.
func (d *door) everyone(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Cache-Control", "no-store")
		switch {
		case d.loopback && !d.guarded && !plainHost(r.Host):
			http.Error(w, "this server answers to localhost and to addresses only; set a token to reach it under a name", http.StatusMisdirectedRequest)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			header.Set("Allow", "GET, HEAD")
			http.Error(w, "nothing can be changed here: GET and HEAD only", http.StatusMethodNotAllowed)
		default:
			next.ServeHTTP(w, r)
		}
	})
}
