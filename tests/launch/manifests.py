#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reads the manifests of examples/launch/kubernetes and starts programs of this host in their containers' environments:
manifests.py ADDRESS SHOW_LAUNCH PROGRAM DATA FOLDER. What Kubernetes would add (index, host name, secret, and the name of
the first pod, here for ADDRESS of this host) is added. Then each container's own command runs with its own arguments, but
that PROGRAM, the file DATA and a folder in FOLDER stand for those of the image and for the volume. Without ADDRESS ("")
nothing that has to meet is started."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "launch" / "kubernetes"
address, show_launch, program, data, folder = sys.argv[1:]


def load(name):
    return yaml.safe_load((FOLDER / name).read_text())


def check(is_right, text):
    if not is_right:
        sys.exit(f"FAILED: {text}")


def variables_of(container):
    """Returns the environment, and checks that the secret is taken from a Secret and not written there."""
    variables = {}
    for entry in container["env"]:
        if entry["name"] == "RAILYARD_SECRET":
            check("secretKeyRef" in entry["valueFrom"], "the secret comes from a Secret")
            variables[entry["name"]] = "0123456789abcdef0123456789abcdef"
        else:
            check(isinstance(entry["value"], str), f"{entry['name']} is a text, as Kubernetes demands: quote it")
            variables[entry["name"]] = entry["value"]
    return variables


def run_pods(variables, job_name, leader, size, command):
    """Runs the command in each pod's environment and with a file of hosts that knows the leader; returns the outputs."""
    with tempfile.NamedTemporaryFile("w") as hosts:
        hosts.write(f"127.0.0.1 localhost\n{address} {leader}\n")
        hosts.flush()
        in_pod = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts.name]
        pods = []
        for index in range(size):
            added = {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"{job_name}-{index}"}
            pods.append(subprocess.Popen(in_pod + command, env=dict(os.environ) | variables | added, text=True,
                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        outputs = [pod.communicate(timeout=120)[0] for pod in pods]
    check(all(pod.returncode == 0 for pod in pods), "".join(outputs))
    return outputs


def command_of(pod, title):
    """Returns the container's command as it runs here, and checks that it can run in a pod: with a file that an image can
    hold, and with a folder on a volume that is claimed."""
    container = pod["containers"][0]
    arguments = container.get("args", [])
    check(Path(container["command"][0]).name == "digits_launched", "the program is examples/launch/digits.cpp")
    check(len(arguments) == 4 and all(isinstance(one, str) for one in arguments),
          f"{title}: the program is given its data, a number of workers, a folder and a name: {arguments}")
    claims = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: claims[mount["name"]] for mount in container["volumeMounts"]}
    check(mounts.get(arguments[2]) == storage["metadata"]["name"], f"the runs stand on the volume of runs.yaml: {mounts}")
    check(Path(arguments[0]).is_absolute() and Path(arguments[0]).name == Path(data).name, "the image holds the data")
    return [program, data, arguments[1], str(Path(folder) / title), arguments[3]]


def check_job(job, job_name, subdomain, title):
    """job_name: the beginning of the names of its pods."""
    spec = job["spec"]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    variables = variables_of(container)
    size = spec["completions"]
    leader = f"{job_name}-0.{subdomain}"
    check(spec["completionMode"] == "Indexed", "the job is indexed")
    check(spec["parallelism"] == size, "all pods run at a time")
    check(variables["WORLD_SIZE"] == str(size), "WORLD_SIZE is the number of pods")
    check(variables["MASTER_ADDR"] == leader, f"MASTER_ADDR is {leader}")
    check(int(variables["MASTER_PORT"]) == container["ports"][0]["containerPort"], "the port is the container's")
    check(pod["restartPolicy"] == "Never", "a failed pod is not started again by itself")
    command = command_of(pod, title)
    outputs = run_pods(variables, job_name, leader, size, [show_launch] if address else [show_launch, "environment"])
    for index, output in enumerate(outputs):
        for text in (f"process {index} of {size},", f"Kubernetes (Indexed Job): WORLD_SIZE={size}, JOB_COMPLETION_INDEX={index}",
                     f"met in the fixed address {leader}:29500" if address else f"leader {leader}:29500;"):
            check(text in output, f"{title}: \"{text}\" is not in: {output}")
    print(f"ok: {title}, {size} processes, leader {leader}")
    if address:
        print("".join(run_pods(variables, job_name, leader, size, command)))


storage = load("runs.yaml")
check(storage["kind"] == "PersistentVolumeClaim" and storage["spec"]["accessModes"] == ["ReadWriteMany"],
      "pods of several nodes write to the storage")
job = load("indexed_job.yaml")
service = load("service.yaml")
name = job["metadata"]["name"]
check(service["spec"]["clusterIP"] == "None", "the service is headless")
check(service["spec"]["publishNotReadyAddresses"] is True, "pods have names before they are ready")
check(service["spec"]["selector"] == {"job-name": name}, "the service selects the pods of the job")
check(job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"], "the subdomain is the service")
check({"action": "Ignore", "onExitCodes": {"operator": "In", "values": [75]}} in job["spec"]["podFailurePolicy"]["rules"],
      "a run that wants to go on is no failure")
check_job(job, name, service["metadata"]["name"], "indexed_job.yaml")

job_set = load("jobset.yaml")
network = job_set["spec"]["network"]
check(network["enableDNSHostnames"] is True, "JobSet makes the names of pods")
replicated = job_set["spec"]["replicatedJobs"][0]
check(replicated["replicas"] == 1, "there is one job, in which the pods are counted")
check_job(replicated["template"], f"{job_set['metadata']['name']}-{replicated['name']}-0", network["subdomain"], "jobset.yaml")
