# Read by the assembler before each file of a build by scripts/manylinux.sh. Ubuntu 22.04 links the libstdc++ of GCC 12, which has a newer
# version of this function. The older one does the same, and RHEL 9 has it.
.symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11
