package explore

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// edit replaces a text of a product file, which has to be there once.
type edit struct{ file, old, new string }

const (
	seamImport = "\"github.com/hullmark/hullmark/internal/explore/seam\"\n"
	rootImport = "\t\"github.com/hullmark/hullmark\"\n"
)

// before puts a statement in front of a line.
func before(file, line, statement string) edit { return edit{file, line, statement + "\n" + line} }

// insteadOf lets a function end before it comes to the line: what a statement returns stands in the place of the rest.
func insteadOf(file, line, statement string) edit {
	return before(file, line, "\tif true {\n"+statement+"\n}")
}

// fakes put the explorer's fakes in the place of devices, channels and the TPM's cryptography. All that decides stays as it is.
func fakes() []edit {
	const (
		registers, prover = "attest/prover/registers.go", "attest/prover/prover.go"
		dial, agent       = "firstboot/dial.go", "firstboot/agent.go"
		advance, services = "firstboot/advance.go", "firstboot/services.go"
		volume            = "firstboot/statedisk/volume/volume.go"
		format, tree      = "firstboot/statedisk/volume/format.go", "firstboot/statedisk/volume/tree.go"
		device            = "firstboot/statedisk/volume/device.go"
		manifest          = "firstboot/statedisk/manifest.go"
	)
	edits := []edit{
		insteadOf(registers, "\tvar registers attest.Registers\n\tfor _, half", "return attest.Registers(seam.World.Registers()), nil"),
		insteadOf(registers, "\t_, err := tpm2.PCREvent{", "return seam.World.Extend(pcr, data)"),
		insteadOf(prover, "\tek, err := choose(p.tpm, owner)\n", "p.identity.EKPublic, p.identity.AKPublic = seam.World.Keys()\nreturn nil"),
		insteadOf(prover, "\tblob, err := tpm2.Unmarshal[tpm2.TPM2BIDObject](credential)\n", "return seam.World.Unwrap(credential, secret)"),
		insteadOf(prover, "\tquoted, err := tpm2.Quote{", "r := attest.Registers(seam.World.Registers())\nd := r.Digest()\nreturn Evidence{Quoted: append(binding[:], d[:]...), Signature: d[:]}, d[:], nil"),
		insteadOf("attest/verifier/verifier.go", "\tname, err := e.akName()\n", "e.secret, err = hullmark.RandomSecret(random, attest.SecretSize)\nreturn append([]byte(nil), e.secret.Expose()...), e.claims.EKID[:], err"),
		insteadOf("attest/verifier/quote.go", "\tif err := checkAttributes(ak.ObjectAttributes); err != nil {\n",
			"d := registers.Digest()\nif string(proof.GetQuoted()) == string(binding[:])+string(d[:]) {\nreturn nil\n}\nreturn errors.New(\"the quote is of another exchange\")"),

		{agent, "\t\"crypto/rand\"\n", "\trand " + seamImport},
		{dial, "a.reach(ctx, endpoint)\n\tif condition != nil", "seam.Reach()\n\tif condition != nil"},
		{dial, "over(conn, info)", "seam.Over(conn, info)"},
		{services, "conn, info, condition := a.reach(ctx, endpoint)", "conn, info, condition := seam.Reach()"},
		{services, "client, err := over(conn, info)", "client, err := seam.Over(conn, info)"},
		{services, "call(ctx, wire.NewJoinServiceClient(client), info)", "call(ctx, nil, info)"},
		{advance, "client.Epoch(ctx)", "seam.World.DialEpoch()"},
		{dial, "wire.NewJoinServiceClient(client).Exchange(ctx)", "seam.World.Dial()"},
		{dial, "a.countDown(ctx, pause/2+rand.N(pause/2+1))", "_ = pause\n\t\tseam.World.Pause(ctx, a.turn.isKept(), a.wasReady())"},
		{"firstboot/serve.go", "net.Listen(\"tcp\", a.Listen)", "seam.Listen()"},
		{"firstboot/serve.go", "servicefiles.Listen(a.RunDir)", "seam.Listen()"},
		{"firstboot/serve.go", "tls, err := channel.NodeTLS(a.config.ClusterRoot)", "_ = channel.NodeTLS\n\ttls, err := seam.NoTLS()"},
		{"firstboot/serve.go", "go (advancer{a}).run(ctx)", "seam.World.Advances(a.wasReady(), func() error { return services{a}.ask(ctx, advancer{a}.ask) })"},
		insteadOf("firstboot/status.go", "\tif err := atomicfile.Write(s.File, s.encode(), 0o644); err != nil {\n", "return // Nobody reads it."),
		insteadOf(manifest, "\tdefer clear(b)\n", "intent := string(m.Files[IntentFile].Content)\nseam.World.Storing(m.Epoch, intent)\nerr := atomicfile.WriteIn(root, ManifestFile, b, 0o600)\nseam.World.Stored(m.Epoch, intent)\nreturn MAC(b[len(b)-sha256.Size:]), err"),
		{"firstboot/renew.go", "unix.Syncfs(int(dir.Fd()))", "func() error { _ = unix.Syncfs; seam.World.Sync(); return nil }()"},

		{"joinservice/exchange.go", "x.conversation.over = mine.over", "seam.World.Watch(x.ctx, mine.over)"},
		before("joinservice/conversation.go", "\tc.stalled = c.stalled || errors.Is(err, wire.ErrOver)", "if errors.Is(err, seam.ErrOver) {\nerr = wire.ErrOver\n}"),

		{volume, "return statedisk.Probe(f, size)", "return seam.World.Probe(f, size)"},
		insteadOf(volume, "\tdevice, err := cryptsetup.InitDataDevice(w.header(), path)\n", "return seam.World.Activate(keys.LUKS.Expose())"),
		insteadOf(volume, "\tcontrol, err := devmapper.Open()\n", "return statedisk.Geometry{ProvidedSectors: 1 << 18, JournalSectors: 1 << 10, InterleaveSectors: 1 << 15, TagSize: 32, BlockSize: 4096}, nil"),
		insteadOf(format, "\tdevice, err := cryptsetup.InitDataDevice(w.header(), path)\n", "return seam.World.Format(w.header(), uuid.String(), keys.LUKS.Expose())"),
		insteadOf(format, "\tsize, err := zeroRead(\"/dev/mapper/\" + Name)\n", "return w.mounted(func(root *os.Root) error { return makeTree(root, disk, epoch, keys.Manifest) })"),
		insteadOf(tree, "\tconst flags = unix.MS_NOSUID", "return seam.World.Mounted(do)"),
		{device, "\tif _, err := f.WriteAt(b, offset); err != nil {\n\t\treturn err\n\t}\n\treturn f.Sync()", "\treturn seam.World.Write(f, b, offset)"},
	}
	for _, file := range []string{dial, advance, "firstboot/serve.go", "firstboot/renew.go", "joinservice/exchange.go", "joinservice/conversation.go", volume, format, tree, device, prover, manifest} {
		edits = append(edits, edit{file, rootImport, rootImport + "\t" + seamImport})
	}
	return append(
		edits,
		edit{services, "\t\"github.com/hullmark/hullmark/attest\"\n", "\t\"github.com/hullmark/hullmark/attest\"\n\t" + seamImport},
		edit{registers, "\t\"github.com/hullmark/hullmark/attest\"\n", "\t\"github.com/hullmark/hullmark/attest\"\n\t" + seamImport},
	)
}

// apply returns the edited files below root by their names. An old text that is not there once is an error: the code has moved
// on, and the edit has to follow.
func apply(root string, edits ...edit) (map[string]string, error) {
	files := map[string]string{}
	for _, e := range edits {
		text, ok := files[e.file]
		if !ok {
			b, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return nil, err
			}
			text = string(b)
		}
		if n := strings.Count(text, e.old); n != 1 {
			return nil, fmt.Errorf("%s has the text %q %d times, want once", e.file, e.old, n)
		}
		files[e.file] = strings.Replace(text, e.old, e.new, 1)
	}
	return files, nil
}
