package integration

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// secrets are words that occur nowhere else, and everything that could have shown them.
type secrets struct {
	t     *testing.T
	words map[string]string // by what they are
	seen  bytes.Buffer
}

// word makes a secret. It needs to be escaped wherever something is escaped.
func (s *secrets) word(what string) string {
	random := make([]byte, 9)
	_, err := rand.Read(random)
	require.NoError(s.t, err)
	word := hex.EncodeToString(random) + "!%+/'\\@x" + hex.EncodeToString(random[:4])
	s.words[what] = word
	return word
}

// look takes in what somebody could have read.
func (s *secrets) look(where string, text string) { fmt.Fprintf(&s.seen, "\n==== %s\n%s", where, text) }

// unknown proves that no secret was shown, nor a part of one, however it was escaped.
func (s *secrets) unknown() {
	seen := s.seen.String()
	for what, word := range s.words {
		head, _, _ := strings.Cut(word, "!")
		tail := word[len(word)-8:]
		for _, form := range []string{head, tail, base64.StdEncoding.EncodeToString([]byte(word))[:20], hex.EncodeToString([]byte(word))} {
			if at := strings.Index(seen, form); at >= 0 {
				before := seen[:at]
				where := before[strings.LastIndex(before, "\n==== ")+1:]
				where, _, _ = strings.Cut(where, "\n")
				require.Fail(s.t, "a secret was shown", "%s in %s: %s", what, where, seen[max(0, at-200):min(len(seen), at+40)])
			}
		}
	}
}

// run runs a command to its end, with more variables in its environment.
func (s *secrets) run(more []string, arguments ...string) (code int) {
	program, err := build()
	require.NoError(s.t, err)
	var out bytes.Buffer
	command := exec.CommandContext(s.t.Context(), fmt.Sprintf("/proc/self/fd/%d", program.Fd()), arguments...)
	command.Env, command.Stdout, command.Stderr = append(environment(), more...), &out, &out
	_ = command.Run() // its exit code says it
	s.look(fmt.Sprintf("%s with exit code %d", arguments[0], command.ProcessState.ExitCode()), out.String())
	return command.ProcessState.ExitCode()
}

// TestSecretsStaySecret: no password or token that the program was given, in any of the
// ways there are, comes out of it anywhere: not in logs, errors, reports, pages, metrics, the
// state on the target, what the servers know of its sessions, or the titles of processes.
func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	server := secure(t)
	l := linkOf(t, server.Cluster, server.Cluster)
	s := &secrets{t: t, words: make(map[string]string)}
	admin := server.URI("postgres")
	password, wrong, token := s.word("password"), s.word("wrong password"), s.word("token")
	token = strings.NewReplacer(`'`, "", `\`, "", " ", "", "!", "", "@", "", "%", "").Replace(token)
	s.words["token"] = token + "!"
	pgtest.Exec(t, admin, `create role keeper superuser login`, `alter role keeper password `+quoteLiteral(password))
	pgtest.Admit(t, server.Cluster, "hostssl all keeper 127.0.0.1/32 scram-sha-256\nhost all keeper 127.0.0.1/32 reject\n")

	directory := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(directory, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	escaped := strings.NewReplacer(`\`, `\\`, ":", `\:`)
	passfile := file("pgpass", "*:*:*:*:"+escaped.Replace(password)+"\n")
	wrongfile := file("wrong", "*:*:*:*:"+escaped.Replace(wrong)+"\n")
	tokenfile := file("token", token)
	keyPassword := s.word("sslpassword")
	certificate, key := server.authority.Client("keeper")
	lockedKey := lock(t, key, keyPassword, filepath.Join(directory, "locked.key"))
	name := func(uri string) string { return pgtest.Query(t, uri, `select current_database()`) }
	uri := func(database, user string) string {
		return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=verify-full&sslrootcert=%s", user, server.Port(), database, url.QueryEscape(server.authority.Root))
	}
	withPassword := func(database, password string) string { return uri(database, "keeper:"+url.QueryEscape(password)) }
	source, target := name(l.source), name(l.target)
	services := file("services", fmt.Sprintf("[source]\nhost=127.0.0.1\nport=%d\ndbname=%s\nuser=keeper\npassword=%s\nsslmode=require\n", server.Port(), source, password))
	config := file("pgapply.yaml", fmt.Sprintf("source: %q\ntarget: %q\npublication: [p]\n", withPassword(source, password), withPassword(target, password)))

	l.both(`create table t (id int primary key, v text)`)
	l.onSource(`insert into t select g, 'row' from generate_series(1, 100) g`, `create publication p for table t`)
	without := []string{"--name", l.name}

	// Every way to give a password, right and wrong, where it works and where it does not.
	ways := map[string]struct{ environment, flags []string }{
		"URI in the environment":  {environment: []string{"PGAPPLY_SOURCE=" + withPassword(source, password), "PGAPPLY_TARGET=" + withPassword(target, password)}},
		"PGPASSWORD":              {environment: []string{"PGPASSWORD=" + password}, flags: []string{"--source", uri(source, "keeper"), "--target", uri(target, "keeper")}},
		"password files":          {flags: []string{"--source", uri(source, "keeper"), "--target", uri(target, "keeper"), "--source-passfile", passfile, "--target-passfile", passfile}},
		"service":                 {environment: []string{"PGSERVICEFILE=" + services, "PGAPPLY_TARGET=" + withPassword(target, password)}, flags: []string{"--source", "service=source"}},
		"configuration":           {flags: []string{"--config", config}},
		"sslpassword":             {environment: []string{"PGAPPLY_SOURCE=" + withPassword(source, password) + "&sslcert=" + url.QueryEscape(certificate) + "&sslkey=" + url.QueryEscape(lockedKey) + "&sslpassword=" + url.QueryEscape(keyPassword), "PGAPPLY_TARGET=" + withPassword(target, password)}},
		"keywords":                {environment: []string{"PGAPPLY_SOURCE=" + fmt.Sprintf("host=127.0.0.1 port=%d user=keeper dbname=%s sslmode=require password='%s'", server.Port(), source, strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password)), "PGAPPLY_TARGET=" + withPassword(target, password)}},
		"wrong":                   {environment: []string{"PGAPPLY_SOURCE=" + withPassword(source, wrong), "PGAPPLY_TARGET=" + withPassword(target, password)}},
		"wrong at the target":     {environment: []string{"PGAPPLY_SOURCE=" + withPassword(source, password), "PGAPPLY_TARGET=" + withPassword(target, wrong)}},
		"wrong file":              {flags: []string{"--source", uri(source, "keeper"), "--target", uri(target, "keeper"), "--source-passfile", wrongfile, "--target-passfile", wrongfile}},
		"wrong sslpassword":       {environment: []string{"PGAPPLY_SOURCE=" + withPassword(source, password) + "&sslcert=" + url.QueryEscape(certificate) + "&sslkey=" + url.QueryEscape(lockedKey) + "&sslpassword=" + url.QueryEscape(wrong), "PGAPPLY_TARGET=" + withPassword(target, password)}},
		"no such host":            {environment: []string{"PGAPPLY_SOURCE=postgres://keeper:" + url.QueryEscape(wrong) + "@no-such-host.invalid/d", "PGAPPLY_TARGET=postgres://keeper:" + url.QueryEscape(wrong) + "@no-such-host.invalid/d"}},
		"nobody listens":          {environment: []string{"PGAPPLY_SOURCE=postgres://keeper:" + url.QueryEscape(wrong) + "@127.0.0.1:1/d", "PGAPPLY_TARGET=" + withPassword(target, password)}},
		"no such database":        {environment: []string{"PGAPPLY_SOURCE=" + withPassword("absent", password), "PGAPPLY_TARGET=" + withPassword("absent", password)}},
		"malformed":               {environment: []string{"PGAPPLY_SOURCE=postgres://keeper:" + wrong + "@[::1/d", "PGAPPLY_TARGET=postgres://keeper:" + wrong + "@h:port/d"}},
		"malformed keywords":      {environment: []string{"PGAPPLY_SOURCE=password=" + wrong, "PGAPPLY_TARGET=host=h password='" + wrong}},
		"an option that is wrong": {environment: []string{"PGAPPLY_SOURCE=" + withPassword(source, password) + "&sslmode=perhaps", "PGAPPLY_TARGET=" + withPassword(target, password) + "&work_mem=lots"}},
	}
	for what, way := range ways {
		for _, command := range [][]string{
			{"config", "print", "--json"}, {"check", "--publication", "p", "--json"},
		} {
			arguments := append(append(append([]string{}, command...), without...), way.flags...)
			s.run(way.environment, arguments...)
		}
		if what == "wrong" || what == "wrong at the target" || what == "nobody listens" {
			failing := spawnWith(t, way.environment, append([]string{"run", "--publication", "p", "--log-level", "debug", "--name", l.name + "_x", "--spool-dir", directory}, way.flags...)...)
			failing.saysOrEnds("retry_in")
			failing.kill()
			s.look("the log of run, "+what, failing.stderr.String())
		}
	}
	// On the command line they are for everyone to see, which is said without saying them.
	for _, command := range []string{"status", "verify"} {
		before := s.seen.Len()
		s.run(nil, command, "--name", l.name, "--target", "postgres://keeper:"+url.QueryEscape(wrong)+"@127.0.0.1:1/d", "--source", "host=127.0.0.1 port=1 password="+strings.NewReplacer(`\`, `\\`, `'`, `\'`, " ", `\ `).Replace(wrong))
		require.Contains(t, s.seen.String()[before:], "the command line shows a password", command)
	}

	// A whole life: copy, stream, an error, HTTP with a token.
	p := spawnWith(t, []string{"PGAPPLY_SOURCE=" + withPassword(source, password), "PGAPPLY_TARGET=" + withPassword(target, password)},
		"run", "--publication", "p", "--http", ":0", "--http-token-file", tokenfile, "--name", l.name, "--log-level", "debug", "--spool-dir", directory)
	p.says("streaming", "serving HTTP on ")
	pgtest.WaitFor(t, l.target, `select count(*) from t`, "100")
	l.onTarget(`insert into t values (1000, 'in the way')`)
	l.onSource(`insert into t values (1000, 'x')`)
	p.says("conflict")
	address := regexp.MustCompile(`serving HTTP on (\S+/)`).FindStringSubmatch(p.stderr.String())[1]
	for _, path := range []string{"", "status", "metrics", "healthz", "readyz", "conflicts", "history", "page.js", "nowhere"} {
		for _, authorization := range []string{"Bearer " + token, "Bearer " + wrong, ""} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+path, nil)
			require.NoError(t, err)
			request.Header.Set("Authorization", authorization)
			answer, err := http.DefaultClient.Do(request)
			require.NoError(t, err)
			body, err := io.ReadAll(answer.Body)
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			s.look("/"+path, fmt.Sprint(answer.Status, answer.Header, string(body)))
		}
	}
	title, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.command.Process.Pid))
	require.NoError(t, err)
	s.look("the process title", string(title))
	s.look("the servers' view", pgtest.Query(t, admin, `select string_agg(a::text, E'\n') from pg_stat_activity a where usename = 'keeper'`))
	right := []string{"PGAPPLY_SOURCE=" + withPassword(source, password), "PGAPPLY_TARGET=" + withPassword(target, password)}
	for _, command := range [][]string{
		{"status"}, {"status", "--json", "--tables"}, {"conflicts", "list"}, {"verify", "--json", "--settle-timeout", "1s"}, {"cutover", "--dry-run", "--json"}, {"refresh"}, {"pause"}, {"resume"},
	} {
		s.run(right, append(command, without...)...)
	}
	p.kill()
	s.look("the log of run", p.stderr.String())
	s.look("the state", pgtest.Query(t, l.target, `select coalesce(string_agg(query_to_xml(format('select * from pgapply.%I', relname), true, false, '')::text, E'\n'), '')
		from pg_class where relnamespace = 'pgapply'::regnamespace and relkind in ('r', 'p')`))
	require.Greater(t, s.seen.Len(), 50_000, "there is something to search")
	s.unknown()
}

// saysOrEnds waits until the process has written a text to its log, or has ended.
func (p *process) saysOrEnds(text string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), patience)
	defer cancel()
	_ = p.stderr.await(ctx, p.exited, text)
	require.NoError(p.t, ctx.Err(), "neither says %q nor ends", text)
}

// lock encrypts a client's key with a password, as openssl did of old and libpq reads.
func lock(t *testing.T, key, password, path string) string {
	text, err := os.ReadFile(key)
	require.NoError(t, err)
	block, _ := pem.Decode(text)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	require.NoError(t, err)
	der, err := x509.MarshalECPrivateKey(parsed.(*ecdsa.PrivateKey)) //nolint:forcetypeassert // the authority makes no others
	require.NoError(t, err)
	locked, err := x509.EncryptPEMBlock(rand.Reader, "EC PRIVATE KEY", der, []byte(password), x509.PEMCipherAES256) //nolint:staticcheck // what pgconn can read
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(locked), 0o600))
	return path
}
