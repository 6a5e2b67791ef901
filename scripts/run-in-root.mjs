/**
 * `node scripts/run-in-root.mjs <folder> <command> [arguments]`: runs a command in an image's root file system the way
 * a strict container does, without a container engine. It is process 1 of a process namespace of its own, has uid 1000
 * and no capability, and its file system is read-only; the network is the machine's. Needs root. A SIGTERM or SIGINT
 * to us goes to process 1, as that of `docker stop` does, and our exit code is the command's.
 */
import { spawn } from "node:child_process"
import { readFileSync } from "node:fs"

const [root = "", ...command] = process.argv.slice(2)

/** Run by a shell as `sh -c … <root> <command>`, which mounts and then becomes the command. */
const inside = `
  set -eu
  mount --bind -o ro "$0" "$0"
  mount -t proc -o nosuid,nodev,noexec proc "$0/proc"
  mount -t tmpfs -o mode=755,nosuid,noexec tmpfs "$0/dev"
  for name in null zero random urandom; do
    touch "$0/dev/$name"
    mount --bind "/dev/$name" "$0/dev/$name"
  done
  mount -o remount,ro "$0/dev"
  exec setpriv --no-new-privs --inh-caps=-all chroot --userspec=1000:1000 --groups= "$0" "$@"
`
const namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
// Our own death takes all of it along.
const child = spawn("setpriv", ["--pdeathsig", "KILL", ...namespaces, "sh", "-c", inside, root, ...command], {
  stdio: "inherit"
})
for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, () => {
    // unshare hands no signal on; its only child is process 1 of the namespace.
    const [first] = readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, "utf8").split(" ")
    if (first) process.kill(Number(first), signal)
  })
}
child.on("error", (error) => {
  process.stderr.write(`${error.message}\n`)
  process.exitCode = 1
})
// unshare ends with 128 and the number of the signal that ended its child.
child.on("exit", (code) => {
  process.exitCode = code ?? 1
})
