#!/usr/bin/env bash
# Makes the topologies of machines that tests place ranks on: tests/topologies/make.sh FOLDER. Needs hwloc's lstopo.
set -eu
folder=$1
write() { lstopo-no-graphics --no-io --of xml -i "$2" > "$folder/$1.xml"; }
smt=0,64
for cpu in {1..63}; do smt+=",$cpu,$((cpu + 64))"; done
write one_by_four "numa:1 pack:1 core:4 pu:1"
write two_sockets_smt "pack:2 [numa] core:32 pu:2(indexes=$smt)"  # CPU n and n + 64 are one core
write four_nodes "pack:2 numa:2 core:8 pu:1"
write ninety_six "pack:2 numa:2 core:24 pu:1"
# Four performance cores with two CPUs each (0 to 7), and eight efficiency cores with one (8 to 15).
cpus=0,1,2,3,4,5,6,7
for cpu in {8..15}; do cpus+=",$cpu,$((cpu + 8))"; done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
lstopo-no-graphics --no-io --of xml -i "numa:1 pack:1 core:12 pu:2(indexes=$cpus)" > "$scratch/all.xml"
lstopo-no-graphics --no-io --of xml -i "$scratch/all.xml" --restrict 0xffff > "$scratch/restricted.xml"
hwloc-annotate "$scratch/restricted.xml" "$scratch/slow.xml" all cpukind 0xff00 0 0 CoreType IntelAtom
hwloc-annotate "$scratch/slow.xml" "$folder/hybrid.xml" all cpukind 0xff 1 0 CoreType IntelCore
