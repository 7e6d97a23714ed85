package vm

import (
	"cmp"
	"context"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/hullmark/hullmark/internal/toolstree"
	"github.com/hullmark/hullmark/pcrs/machine"
)

// hardware is all that decides QEMU's command line.
type hardware struct {
	config    Config
	files     Files
	accel     Accel // kvm or tcg, decided
	qemuMajor int
	forwards  []Forward  // with the host ports that were chosen
	cables    []*os.File // the connections to networks, one for each card, or none for routers of its own
	disk      string     // path of the machine's own, or empty
	stateDisk string     // path, or empty
	nodeConf  string     // path, or empty
	tpmSocket string
	qmpSocket string
	tools     toolset
}

// file is a path as QEMU sees it, quoted for QEMU's option syntax, where a comma ends a value and two commas are one.
func (h hardware) file(path string) string {
	return strings.ReplaceAll(h.tools.inside(path), ",", ",,")
}

// command prepares QEMU. binds are the writable folders; what it only reads is added here.
func (h hardware) command(ctx context.Context, binds []toolstree.Bind) (*exec.Cmd, error) {
	read := append([]string{h.files.Firmware}, h.files.OptionROMs...)
	if b := h.config.Bare; b != nil && b.Stick != "" {
		read = append(read, b.Stick)
	}
	for _, path := range read {
		binds = append(binds, toolstree.Bind{Host: path})
	}
	for _, socket := range []string{h.config.StateNBD, h.config.ImageNBD, h.config.VarsNBD} {
		if socket != "" {
			binds = append(binds, toolstree.Bind{Host: socket, Writable: true})
		}
	}
	cmd, err := h.tools.command(ctx, binds, qemuProgram, h.arguments()...)
	if err == nil {
		cmd.ExtraFiles = h.cables
	}
	return cmd, err
}

// arguments is QEMU's command line for a machine. The console is standard output.
func (h hardware) arguments() []string {
	args := h.platform()
	args = append(args, h.flash()...)
	args = append(args, h.disks()...)
	args = append(args, h.network(0)...)
	args = append(args, h.tpm()...)
	args = append(args,
		"-object", "rng-random,id=rng0,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng0",
		"-chardev", "stdio,id=console,signal=off,mux=off", "-serial", "chardev:console",
		"-qmp", "unix:"+h.file(h.qmpSocket)+",server=on,wait=off")
	for i := 1; i < h.config.Cards; i++ {
		args = append(args, h.network(i)...)
	}
	if h.nodeConf != "" {
		args = append(args, "-fw_cfg", "name="+NodeConfigName+",file="+h.file(h.nodeConf))
	}
	for _, name := range slices.Sorted(maps.Keys(h.config.FwCfg)) {
		args = append(args, "-fw_cfg", "name="+strings.ReplaceAll(name, ",", ",,")+",string="+strings.ReplaceAll(h.config.FwCfg[name], ",", ",,"))
	}
	for _, text := range h.config.SMBIOS {
		args = append(args, "-smbios", "type=11,value="+strings.ReplaceAll(text, ",", ",,"))
	}
	if h.config.ExitOnReboot {
		args = append(args, "-no-reboot")
	}
	return args
}

func (h hardware) platform() []string {
	machine := "q35"
	if h.config.SecureBoot {
		machine += ",smm=on"
	}
	accel := string(h.accel)
	if h.accel == AccelTCG {
		accel += ",thread=multi,tb-size=" + strconv.Itoa(h.translationMiB())
	}
	return []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-parallel", "none",
		"-machine", machine, "-accel", accel, "-cpu", h.cpu(),
		"-smp", strconv.Itoa(h.config.CPUs), "-m", strconv.Itoa(h.config.MemoryMiB),
	}
}

// translationMiB is how much translated code the emulator keeps, in MiB; it takes memory as it fills. When it is full all of it is thrown
// away: a control plane that starts has 680 MiB three minutes after power-on, and with 512 they were thrown away three times in eight
// and a half. QEMU takes at most 2 GiB on x86-64.
func (h hardware) translationMiB() int {
	if h.config.MemoryMiB < 2048 {
		return 512
	}
	return 2047
}

// cpu names the CPU model. TCG before QEMU 8 gets a 16-byte compare-and-exchange wrong when several CPUs run in threads of
// their own: the guest's kernel panics in its allocator. Without the flag the kernel does not use the instruction.
func (h hardware) cpu() string {
	switch {
	case h.accel == AccelKVM:
		return "host"
	case h.qemuMajor < 8 && h.config.CPUs > 1:
		return "max,-cx16"
	default:
		return "max"
	}
}

// drive is where QEMU finds the content of a drive: in a file, or with the server of a socket, if one is named.
func (h hardware) drive(file, socket string) string {
	if socket != "" {
		return "file.driver=nbd,file.server.type=unix,file.server.path=" + h.file(socket)
	}
	return "file=" + h.file(file)
}

func (h hardware) flash() []string {
	args := []string{
		"-drive", "if=pflash,unit=0,format=raw,readonly=on,file=" + h.file(h.files.Firmware),
		"-drive", "if=pflash,unit=1,format=raw," + h.drive(h.files.Vars, h.config.VarsNBD),
	}
	if h.config.SecureBoot {
		args = append(args, "-global", "driver=cfi.pflash01,property=secure,value=on")
	}
	return args
}

// disks attaches the machine's disk as the only device that is booted from. Without a boot index OVMF would try the network card
// and the state disk as well, which costs time and adds events to PCR 4 when one of them fails. Its PCI address is in the boot
// entry that the firmware makes and measures.
func (h hardware) disks() []string {
	var args []string
	if h.config.Bus == machine.SCSI && h.config.Bare == nil {
		args = append(args, "-device", "virtio-scsi-pci,id=scsi,addr="+strconv.Itoa(machine.ImageSlot))
	}
	if h.config.Bare != nil {
		args = h.bare()
	} else if h.disk != "" || h.config.ImageNBD != "" {
		args = append(args,
			"-drive", "id=image,if=none,format="+cmp.Or(h.config.ImageFormat, "raw")+","+h.drive(h.disk, h.config.ImageNBD),
			"-device", h.diskDevice(0)+",drive=image,bootindex=0,serial="+ImageSerial)
	}
	if h.stateDisk == "" && h.config.StateNBD == "" {
		return args
	}
	state := h.drive(h.stateDisk, h.config.StateNBD)
	return append(args, "-drive", "id=state,if=none,format=raw,discard=unmap,"+state, "-device", h.diskDevice(1)+",drive=state,serial="+StateSerial)
}

// diskDevice is the device of the nth disk: the first is the machine's.
func (h hardware) diskDevice(n int) string {
	place := "" // QEMU chooses the next one that is free.
	if n == 0 {
		place = ",addr=" + strconv.Itoa(machine.ImageSlot)
	}
	switch h.config.Bus {
	case machine.NVMe:
		return "nvme" + place
	case machine.SATA:
		return "ide-hd,bus=ide." + strconv.Itoa(n)
	case machine.SCSI:
		return "scsi-hd,bus=scsi.0,scsi-id=" + strconv.Itoa(n) + ",lun=0"
	}
	return "virtio-blk-pci" + place
}

// network attaches a network card. Neither what it is connected to nor its address is measured: no boot entry leads to it.
func (h hardware) network(i int) []string {
	id := netdevName(i)
	rom := ""
	if len(h.files.OptionROMs) > 0 && i == 0 {
		rom = h.file(h.files.OptionROMs[0])
	}
	netdev, card := "user,id="+id, "virtio-net-pci,netdev="+id+",romfile="+rom
	if i == 0 {
		netdev += hostForwards(h.forwards)
	} else {
		card += ",addr=" + strconv.FormatInt(int64(cardSlot+i), 16) // QEMU reads hexadecimal digits.
	}
	if h.config.Bare != nil {
		card += ",addr=" + strconv.Itoa(BareNICSlot) + ",mac=" + net.HardwareAddr(BareMAC[:]).String()
	}
	if i < len(h.cables) {
		netdev = cableOption(id, i)
		card += ",mac=" + hardwareAddress(h.config.Dir, i).String()
	}
	return []string{"-netdev", netdev, "-device", card}
}

// cardSlot is the PCI device number, on the first bus, that those of all cards but the first are counted from.
const cardSlot = 16

func netdevName(i int) string { return "net" + strconv.Itoa(i) }

func (h hardware) tpm() []string {
	if h.config.TPM == machine.NoTPM {
		return nil
	}
	return []string{
		"-chardev", "socket,id=tpm,path=" + h.file(h.tpmSocket),
		"-tpmdev", "emulator,id=tpm0,chardev=tpm", "-device", "tpm-" + string(h.config.TPM) + ",tpmdev=tpm0",
	}
}
