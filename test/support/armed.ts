/** The moment at which a process of the service first listens to signals. */
export const armed = "listens to signals"

/**
 * For `NODE_OPTIONS`: says {@link armed} when the program's own handler is in place, before any package is loaded. What comes
 * before is Node's own start, in which nobody can handle anything.
 */
export const sayWhenArmed = `--import=data:text/javascript,${encodeURIComponent(
  `process.on("newListener", (name) => {
     // Written so that this text, which is on the stack too, does not match itself.
     const ours = !/node[_]modules/.test(new Error().stack)
     if (name === "SIGTERM" && ours) queueMicrotask(() => process.stdout.write("${armed}\\n"))
   })`
)}`
