package operate

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// TestConnectionsAsLibpqMakesThem opens both ends in every way in which libpq would, as a
// role that needs a password, and TLS where the entry of pg_hba.conf says so.
func TestConnectionsAsLibpqMakesThem(t *testing.T) {
	server := pgtest.Start(t)
	root := pgtest.TurnOnTLS(t, server)
	admin := server.URI("postgres")
	pgtest.Exec(t, admin, `set password_encryption = 'scram-sha-256'`, `create role secret login superuser password 'it''s hunter2'`, `create database shop`)
	pgtest.Admit(t, server, "hostssl all secret 127.0.0.1/32 scram-sha-256\nhost all secret 127.0.0.1/32 reject\n")

	port := fmt.Sprint(server.Port())
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	passfile := file("pgpass", "127.0.0.1:"+port+":shop:secret:it's hunter2\n")
	wrong := file("pgpass", "*:*:*:*:wrong\n")
	services := file("pg_service.conf", "[other]\nhost=nowhere\n[shop]\nhost=127.0.0.1\nport="+port+"\ndbname=shop\nuser=secret\nsslmode=verify-full\nsslrootcert="+root+"\n")
	otherRoot := pgtest.NewAuthority(t).Root
	base := "host=127.0.0.1 port=" + port + " user=secret dbname=shop"
	full := base + " sslmode=verify-full sslrootcert=" + root

	for name, test := range map[string]struct {
		text, passfile string
		environment    map[string]string
		fails          string
	}{
		"password in the string":      {text: full + ` password='it\'s hunter2'`},
		"password in the URI":         {text: "postgres://secret:it%27s%20hunter2@127.0.0.1:" + port + "/shop?sslmode=verify-full&sslrootcert=" + root},
		"PGPASSWORD":                  {text: full, environment: map[string]string{"PGPASSWORD": "it's hunter2"}},
		"PGPASSFILE":                  {text: full, environment: map[string]string{"PGPASSFILE": passfile}},
		"our password file first":     {text: full, passfile: passfile, environment: map[string]string{"PGPASSFILE": wrong}},
		"wrong password":              {text: full, passfile: wrong, fails: "password authentication failed"},
		"service":                     {text: "service=shop", passfile: passfile, environment: map[string]string{"PGSERVICEFILE": services}},
		"service of the URI":          {text: "postgres://?service=shop", passfile: passfile, environment: map[string]string{"PGSERVICEFILE": services}},
		"PGSERVICE":                   {text: "application_name=x", passfile: passfile, environment: map[string]string{"PGSERVICEFILE": services, "PGSERVICE": "shop"}},
		"string over service":         {text: "service=other " + full, passfile: passfile, environment: map[string]string{"PGSERVICEFILE": services}},
		"unknown service":             {text: "service=nobody", environment: map[string]string{"PGSERVICEFILE": services}, fails: "unable to find service"},
		"variables":                   {text: "application_name=x", passfile: passfile, environment: map[string]string{"PGHOST": "127.0.0.1", "PGPORT": port, "PGUSER": "secret", "PGDATABASE": "shop", "PGSSLMODE": "verify-full", "PGSSLROOTCERT": root}},
		"string over variables":       {text: full, passfile: passfile, environment: map[string]string{"PGHOST": "nowhere", "PGPORT": "1", "PGUSER": "nobody", "PGDATABASE": "nothing", "PGSSLMODE": "disable"}},
		"first host is down":          {text: "host=127.0.0.1,127.0.0.1 port=1," + port + " user=secret dbname=shop", passfile: passfile},
		"several hosts of the URI":    {text: "postgres://secret@127.0.0.1:1,127.0.0.1:" + port + "/shop?target_session_attrs=read-write", passfile: passfile},
		"primary":                     {text: full + " target_session_attrs=primary", passfile: passfile},
		"standby where there is none": {text: full + " target_session_attrs=standby", passfile: passfile, fails: "standby"},
		"prefer standby":              {text: full + " target_session_attrs=prefer-standby", passfile: passfile},
		"no TLS":                      {text: base + " sslmode=disable", passfile: passfile, fails: "pg_hba.conf"},
		"TLS unless refused":          {text: base, passfile: passfile},
		"verify-ca":                   {text: base + " sslmode=verify-ca sslrootcert=" + root, passfile: passfile},
		"another authority":           {text: base + " sslmode=verify-ca sslrootcert=" + otherRoot, passfile: passfile, fails: "certificate"},
		"another name":                {text: "host=localhost port=" + port + " user=secret dbname=shop sslmode=verify-full sslrootcert=" + root, passfile: passfile, fails: "certificate"},
		"hostaddr":                    {text: "hostaddr=127.0.0.1 port=" + port + " user=secret dbname=shop sslmode=verify-full sslrootcert=" + root, passfile: passfile},
		"hostaddr of another name":    {text: "host=nowhere.invalid hostaddr=127.0.0.1 port=" + port + " user=secret dbname=shop sslmode=verify-full sslrootcert=" + root, passfile: passfile, fails: "certificate"},
		"channel binding":             {text: full + " channel_binding=require", passfile: passfile},
		"channel binding, no login":   {text: "host=127.0.0.1 port=" + port + " user=postgres dbname=shop channel_binding=require sslmode=require", fails: "channel binding"},
		"least TLS":                   {text: full + " ssl_min_protocol_version=TLSv1.3", passfile: passfile},
		"no such TLS":                 {text: full + " ssl_max_protocol_version=TLSv9", passfile: passfile, fails: "ssl_max_protocol_version is none of"},
		"TLS that is too old":         {text: full, passfile: passfile, environment: map[string]string{"PGSSLMAXPROTOCOLVERSION": "TLSv1.1"}, fails: "tls: "},
		"PGHOSTADDR":                  {text: full, passfile: passfile, environment: map[string]string{"PGHOSTADDR": "127.0.0.1"}, fails: "PGHOSTADDR is set"},
	} {
		t.Run(name, func(t *testing.T) {
			for name, value := range test.environment {
				t.Setenv(name, value)
			}
			ends := Endpoints{Name: "orders", Source: test.text, Target: test.text, SourcePassfile: test.passfile, TargetPassfile: test.passfile}
			publisher, identity, sourceErr := ends.openSource(t.Context())
			target, targetErr := ends.openTarget(t.Context())
			if test.fails != "" {
				for class, err := range map[apply.Class]error{apply.Source: sourceErr, apply.Target: targetErr} {
					require.ErrorContains(t, err, test.fails)
					require.Contains(t, []apply.Class{class, apply.Configuration}, apply.ClassOf(err))
					require.NotContains(t, err.Error(), "hunter2")
				}
				return
			}
			require.NoError(t, sourceErr)
			closeSource(publisher)
			require.NoError(t, targetErr)
			closeTarget(target.conn)
			require.Equal(t, "shop", identity.Database)
			require.Equal(t, "shop", target.server.Database)
			require.Equal(t, "secret", target.server.Role)
		})
	}
}
