/**
 * What ships beside the program: the Kubernetes manifests, the image, the flake, and the version that they all name.
 *
 * The manifests are held against the types of `kubernetes-types`, which are made from Kubernetes' own OpenAPI document: as
 * object literals, in which TypeScript lets no unknown name and no wrong kind of value pass.
 */
import { createHash } from "node:crypto"
import { existsSync, readdirSync, readFileSync } from "node:fs"
import { dirname, join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type { Deployment } from "kubernetes-types/apps/v1.js"
import type { Job } from "kubernetes-types/batch/v1.js"
import type { ConfigMap, Container, PodTemplateSpec, Secret, Service } from "kubernetes-types/core/v1.js"
import type { PodDisruptionBudget } from "kubernetes-types/policy/v1.js"
import ts from "typescript"
import { parse, parseAllDocuments } from "yaml"
import { Settings, settingsTable } from "../src/Settings.js"

const root = fileURLToPath(new URL("..", import.meta.url))
const read = (path: string) => readFileSync(join(root, path), "utf8")
const { version } = JSON.parse(read("package.json")) as { readonly version: string }

const yamlFiles = readdirSync(join(root, "deploy/kubernetes"), { recursive: true, encoding: "utf8" })
  .filter((file) => file.endsWith(".yaml"))
  .map((file) => `deploy/kubernetes/${file}`)

interface Manifest {
  readonly apiVersion: string
  readonly kind: string
}
const manifests = yamlFiles
  .filter((file) => !file.endsWith("kustomization.yaml"))
  .flatMap((file) => parseAllDocuments(read(file)).map((document) => document.toJS() as Manifest))
const ofKind = <A>(kind: string) =>
  manifests.filter((manifest) => manifest.kind === kind) as ReadonlyArray<unknown> as ReadonlyArray<A>
const only = <A>(kind: string): A => {
  const [first, ...others] = ofKind<A>(kind)
  if (first === undefined || others.length > 0) throw new Error(`not exactly one ${kind}`)
  return first
}

interface Kustomization {
  readonly resources: ReadonlyArray<string>
  readonly images?: ReadonlyArray<{ readonly name: string; readonly newTag: string }>
}
const kustomizations = yamlFiles
  .filter((file) => file.endsWith("kustomization.yaml"))
  .map((file) => ({ folder: dirname(file), ...(parse(read(file)) as Kustomization) }))

const deployment = only<Deployment>("Deployment")
const job = only<Job>("Job")
const templates = [deployment.spec?.template, job.spec?.template].filter((template) => template !== undefined)
const containerOf = (template: PodTemplateSpec): Container => {
  const [container, ...others] = template.spec?.containers ?? []
  if (container === undefined || others.length > 0) throw new Error("not exactly one container")
  return container
}
const configMap = only<ConfigMap>("ConfigMap")
const secretNamed = (name: string | undefined) =>
  ofKind<Secret>("Secret").find(({ metadata }) => metadata?.name === name)

/** The part of the Prometheus Operator's ServiceMonitor that is used here; its types are in no package that is. */
const serviceMonitorType = `{
  apiVersion: "monitoring.coreos.com/v1"
  kind: "ServiceMonitor"
  metadata: import("kubernetes-types/meta/v1.js").ObjectMeta
  spec: {
    selector: import("kubernetes-types/meta/v1.js").LabelSelector
    endpoints: Array<{ port: string; path: string; interval: string }>
  }
}`

/** What TypeScript says about manifests as literals of their kinds. */
const typeErrors = (some: ReadonlyArray<Manifest>): ReadonlyArray<string> => {
  const file = join(root, "test/manifests.ts")
  const source = some
    .map((manifest, index) => {
      const group = manifest.apiVersion === "v1" ? "core/v1" : manifest.apiVersion
      const type = `import("kubernetes-types/${group}.js").${manifest.kind}`
      const annotation = manifest.kind === "ServiceMonitor" ? serviceMonitorType : type
      return `export const manifest${index}: ${annotation} = ${JSON.stringify(manifest)}`
    })
    .join("\n")
  const options: ts.CompilerOptions = {
    strict: true,
    noEmit: true,
    types: [],
    lib: ["lib.es5.d.ts"],
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext
  }
  const host = ts.createCompilerHost(options)
  const { getSourceFile } = host
  host.getSourceFile = (name, version) =>
    name === file ? ts.createSourceFile(name, source, version) : getSourceFile(name, version)
  const program = ts.createProgram([file], options, host)
  return program
    .getSemanticDiagnostics(program.getSourceFile(file))
    .map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, "\n"))
}

describe("the Kubernetes manifests", () => {
  it("are what Kubernetes knows: every name, and the kind of every value", () => {
    assert.isAbove(manifests.length, 7)
    assert.deepStrictEqual(typeErrors(manifests), [])
  })

  it("are looked at so closely that a misspelt name and a number in quotes are found", () => {
    const broken = JSON.stringify(deployment)
      .replace("livenessProbe", "livenesProbe")
      .replace('"replicas":2', '"replicas":"2"')
    const errors = typeErrors([JSON.parse(broken)]).join("\n")
    assert.match(errors, /livenesProbe/)
    assert.match(errors, /'string' is not assignable to type 'number'/)
  })

  it("are all part of a kustomization, but for the examples", () => {
    const listed = kustomizations.flatMap(({ folder, resources }) => resources.map((name) => join(folder, name)))
    for (const path of listed) assert.isTrue(existsSync(join(root, path)), path)
    const left = yamlFiles.filter((file) => !file.endsWith("kustomization.yaml") && !listed.includes(file))
    assert.deepStrictEqual(left, ["deploy/kubernetes/examples/secret.yaml"])
  })

  it("name the version of package.json", () => {
    const tags = kustomizations.flatMap(({ images = [] }) => images)
    assert.deepStrictEqual(tags, Array(2).fill({ name: "pg-listener", newTag: version }))
    for (const template of templates) assert.strictEqual(containerOf(template).image, "pg-listener")
  })

  it("set nothing that is no setting", () => {
    const known = settingsTable.flatMap(({ name, isSecret }) => (isSecret ? [name, `${name}_FILE`] : [name]))
    const set = templates.flatMap((template) => (containerOf(template).env ?? []).map(({ name }) => name))
    assert.includeMembers(known, [...set, ...Object.keys(configMap.data ?? {})])
  })

  it.effect("start the service with an environment that it accepts, and wait longer for its end than it takes", () =>
    Effect.gen(function* () {
      const secrets = secretNamed("pg-listener")?.stringData ?? {}
      const { shutdownTimeout } = yield* Effect.provide(Settings, Settings.layerFrom({ ...configMap.data, ...secrets }))
      const graceSeconds = deployment.spec?.template.spec?.terminationGracePeriodSeconds ?? 0
      assert.isAbove(graceSeconds, Duration.toSeconds(shutdownTimeout))
    })
  )

  it("give each secret as a file that the Secret has", () => {
    for (const template of templates) {
      const { env = [], envFrom, volumeMounts = [] } = containerOf(template)
      assert.deepStrictEqual(envFrom, [{ configMapRef: { name: configMap.metadata?.name ?? "" } }])
      const [volume] = template.spec?.volumes ?? []
      const [mount] = volumeMounts
      assert.strictEqual(mount?.name, volume?.name)
      // A file that is mounted by its subPath never changes.
      assert.isUndefined(mount?.subPath)
      const files = Object.keys(secretNamed(volume?.secret?.secretName)?.stringData ?? {})
      const wanted = env.map(({ name, value }) => ({ name, value }))
      assert.sameDeepMembers(
        wanted,
        files.map((file) => ({ name: `${file}_FILE`, value: `${mount?.mountPath}/${file}` }))
      )
    }
  })

  it("give the pods no right that they do not need", () => {
    for (const { spec, ...template } of templates) {
      const { runAsGroup, runAsNonRoot, runAsUser, seccompProfile } = spec?.securityContext ?? {}
      assert.deepStrictEqual(
        { runAsNonRoot, user: `${runAsUser}:${runAsGroup}`, seccompProfile },
        { runAsNonRoot: true, user: "1000:1000", seccompProfile: { type: "RuntimeDefault" } }
      )
      assert.deepStrictEqual(containerOf({ spec, ...template } as PodTemplateSpec).securityContext, {
        allowPrivilegeEscalation: false,
        readOnlyRootFilesystem: true,
        capabilities: { drop: ["ALL"] }
      })
      assert.isFalse(spec?.automountServiceAccountToken)
    }
  })

  it("probe what the service serves, at the port that it serves on", () => {
    const { livenessProbe, ports = [], readinessProbe, startupProbe } = containerOf(deployment.spec?.template ?? {})
    const get = (path: string) => ({ path, port: "health" })
    assert.deepStrictEqual(
      [startupProbe, livenessProbe, readinessProbe].map((probe) => probe?.httpGet),
      [get("/livez"), get("/livez"), get("/readyz")]
    )
    const health = settingsTable.find(({ name }) => name === "PG_LISTENER_HEALTH_PORT")
    assert.deepStrictEqual(ports, [{ name: "health", containerPort: Number(health?.default) }])
  })

  it("find the service's pods, and no migration", () => {
    const { spec, metadata } = only<Service>("Service")
    const labels = deployment.spec?.template.metadata?.labels
    const budget = only<PodDisruptionBudget>("PodDisruptionBudget").spec
    const spread = deployment.spec?.template.spec?.topologySpreadConstraints?.[0]
    for (const selector of [
      deployment.spec?.selector.matchLabels,
      spec?.selector,
      budget?.selector?.matchLabels,
      spread?.labelSelector?.matchLabels
    ]) {
      assert.deepStrictEqual(selector, labels)
    }
    assert.notDeepEqual(job.spec?.template.metadata?.labels, labels)

    const monitor = only<{ spec: { selector: { matchLabels: object }; endpoints: Array<{ port: string }> } }>(
      "ServiceMonitor"
    )
    assert.deepStrictEqual(monitor.spec.selector.matchLabels, metadata?.labels)
    assert.deepStrictEqual(
      monitor.spec.endpoints.map(({ port }) => port),
      spec?.ports?.map(({ name }) => name)
    )
  })

  it("leave one replica running, whatever is done in order", () => {
    const { replicas = 0, strategy } = deployment.spec ?? {}
    const allowed = [
      only<PodDisruptionBudget>("PodDisruptionBudget").spec?.maxUnavailable,
      strategy?.rollingUpdate?.maxUnavailable
    ]
    for (const missing of allowed) assert.isBelow(Number(missing), replicas)
  })
})

describe("the image", () => {
  it("runs as the user whom the manifests name, and shows the port that they probe", () => {
    const dockerfile = read("Dockerfile")
    assert.include(dockerfile, "\nUSER 1000:1000\n")
    assert.include(dockerfile, `\nEXPOSE ${containerOf(deployment.spec?.template ?? {}).ports?.[0]?.containerPort}\n`)
  })
})

describe("the flake", () => {
  it("has the hashes of the packages in package-lock.json; else run scripts/npm-deps-hash.sh", () => {
    const { packages } = JSON.parse(read("package-lock.json")) as { packages: Record<string, unknown> }
    delete packages[""]
    const { lockedPackages } = JSON.parse(read("scripts/npm-deps.json")) as { readonly lockedPackages: string }
    assert.strictEqual(lockedPackages, createHash("sha256").update(JSON.stringify(packages)).digest("hex"))
  })
})

describe("the list of changes", () => {
  it("has a section for the version of package.json", () => {
    assert.include(read("CHANGELOG.md"), `\n## [${version}]`)
  })
})
