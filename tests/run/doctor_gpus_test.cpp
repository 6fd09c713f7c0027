// `dtrain doctor` on GPUs: what its checks make of what they see, faults planted in a fake NVML, and the command
// itself.
#include <gmock/gmock.h>

#include "cli_harness.h"
#include "doctor/checks.h"
#include "doctor/gpu_checks.h"
#include "harness/fake_gpus.h"

namespace dtrain::launcher {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

// Two GPUs with which all is well.
Json healthy() {
  Json two = harness::FakeGpus::two();
  two["driver"] = "580.65.06";
  two["pairs"] = {{"0-1", {{"ancestor", 20}, {"read", 0}, {"write", 0}, {"nvlink", 0}}}};
  for (Json& gpu : two["gpus"]) {
    gpu.update({{"persistence", true},
                {"compute_mode", 0},
                {"mig", {0, 0}},
                {"ecc_mode", {1, 1}},
                {"capability", {9, 0}},
                {"clocks", {{"sm", 345}, {"max_sm", 1980}, {"application", 1500}, {"default_application", 1500}}},
                {"throttle", 0x1},
                {"links", {1, 1, 1, 1}},
                {"fabric", 3},
                {"ecc", 0}});
  }
  return two;
}

class SeenGpus {
 public:
  explicit SeenGpus(const Json& description, const std::string& which = "fake_nvml.so") : fake_(run_.folder(), which) {
    fake_.describe(description);
  }
  host::GpuSetups setups() const { return host::read_gpu_setups(fake_.library()); }
  std::vector<Finding> judge(bool iommu = false) const {
    std::vector<Finding> findings = judge_setups(setups());
    for (Finding& one : judge_pairs(setups(), iommu)) findings.push_back(std::move(one));
    return findings;
  }
  std::string text(bool iommu = false) const {
    const std::vector<HostFindings> hosts{{"", judge(iommu)}};
    return render(hosts);
  }

 private:
  TestRun run_;
  harness::FakeGpus fake_;
};

TEST(GpuWords, Ranges) {
  EXPECT_EQ(name_gpus({3}), "GPU 3");
  EXPECT_EQ(name_gpus({0, 1}), "GPUs 0, 1");
  EXPECT_EQ(name_gpus({0, 1, 2, 5, 7, 8, 9}), "GPUs 0-2, 5, 7-9");
  EXPECT_EQ(list_gpus({0, 2}), "0,2");
}

TEST(GpuSetups, AllIsWell) {
  EXPECT_EQ(SeenGpus(healthy()).text(),
            "\n"
            "  ok        persistence     mode is on\n"
            "  ok        compute mode    processes may share GPUs\n"
            "  ok        MIG mode        is off\n"
            "  ok        ECC             is on\n"
            "  ok        clocks          now 345 of 1980 MHz, idle\n"
            "  ok        GPU processes   none\n"
            "  ok        NVLink          4 of 4 links active on GPUs 0, 1\n"
            "  ok        peer access     between the two GPUs\n"
            "  ok        topology        NVLink: 0-1\n"
            "all is well\n");
}

TEST(GpuSetups, WhatTheDriverDoesNotReportIsOneLine) {
  const std::string unknown =
      "\n"
      "  ok        GPU processes   none\n"
      "  ok        not known       persistence, compute mode, MIG mode, ECC and clocks: the driver does not report it\n"
      "all is well\n";
  EXPECT_EQ(SeenGpus(harness::FakeGpus::two()).text(), unknown);
  Json old = healthy();
  for (Json& gpu : old["gpus"]) gpu.erase("throttle");
  EXPECT_EQ(SeenGpus(old, "fake_nvml_old.so").text(), unknown);
}

struct Fault {
  const char* what;
  Json gpu;   // merged into the second GPU
  Json pair;  // merged into the pair
  Level level;
  const char* check;
  const char* text;
  const char* remedy;
};

TEST(GpuSetups, PlantedFaults) {
  const std::vector<Fault> faults{
      {"persistence",
       {{"persistence", false}},
       {},
       Level::kWarning,
       "persistence",
       "mode is off on GPU 1: each start of a run waits for the driver",
       "sudo nvidia-smi -pm 1 -i 1"},
      {"prohibited",
       {{"compute_mode", 2}},
       {},
       Level::kProblem,
       "compute mode",
       "GPU 1 may not be used by any process",
       "sudo nvidia-smi -c DEFAULT -i 1"},
      {"exclusive",
       {{"compute_mode", 3}},
       {},
       Level::kOk,
       "compute mode",
       "GPU 1 may be used by one process at a time, as a rank does",
       ""},
      {"MIG",
       {{"mig", {1, 1}}},
       {},
       Level::kWarning,
       "MIG mode",
       "is on on GPU 1: a rank gets one part of such a GPU, without access to the others",
       "end what runs there, then: sudo nvidia-smi -mig 0 -i 1"},
      {"no ECC",
       {{"ecc_mode", {0, 0}}},
       {},
       Level::kWarning,
       "ECC",
       "is off on GPU 1: errors of its memory change weights unnoticed",
       "sudo nvidia-smi -e 1 -i 1, then restart the host"},
      {"ECC later",
       {{"ecc_mode", {0, 1}}},
       {},
       Level::kWarning,
       "ECC",
       "is off on GPU 1 until the next restart",
       "restart the host"},
      {"heat in software",
       {{"throttle", 0x20}},
       {},
       Level::kWarning,
       "clocks",
       "GPU 1 is slowed down by heat",
       "see to fans and airflow; nvidia-smi -q -d TEMPERATURE,PERFORMANCE -i 1"},
      {"heat in hardware",
       {{"throttle", 0x48}},
       {},
       Level::kWarning,
       "clocks",
       "GPU 1 is slowed down by heat",
       "see to fans and airflow; nvidia-smi -q -d TEMPERATURE,PERFORMANCE -i 1"},
      {"power brake",
       {{"throttle", 0x88}},
       {},
       Level::kWarning,
       "clocks",
       "GPU 1 is slowed down by the power supply",
       "see to power supplies and cables; nvidia-smi -q -d POWER,PERFORMANCE -i 1"},
      {"hardware slowdown",
       {{"throttle", 0x8}},
       {},
       Level::kWarning,
       "clocks",
       "GPU 1 slows itself down to half",
       "nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE -i 1"},
      {"a change of clocks", {{"throttle", 0x9}}, {}, Level::kOk, "clocks", "now 345 of 1980 MHz, idle", ""},
      {"power limit, usual under load",
       {{"throttle", 0x4}},
       {},
       Level::kOk,
       "clocks",
       "now 345 of 1980 MHz; GPU 0 idle",
       ""},
      {"application clocks",
       {{"clocks", {{"sm", 345}, {"max_sm", 1980}, {"application", 900}, {"default_application", 1500}}}},
       {},
       Level::kWarning,
       "clocks",
       "GPU 1 is set to 900 MHz; its default is 1500",
       "sudo nvidia-smi -rac -i 1"},
      {"a process",
       {{"pids", {4711}}, {"used", 3 << 20}},
       {},
       Level::kWarning,
       "GPU processes",
       "GPU 1 is used by process 4711 (3.0 MiB), which a rank would share it with",
       "ps -o pid,user,etime,args -p 4711 on the host says what they are; wait for their end, or list the other GPUs "
       "in CUDA_VISIBLE_DEVICES"},
      {"processes",
       {{"pids", {12, 13}}, {"used", ~0ull}},
       {},
       Level::kWarning,
       "GPU processes",
       "GPU 1 is used by processes 12 and 13, which a rank would share it with",
       "ps -o pid,user,etime,args -p 12,13 on the host says what they are; wait for their end, or list the other GPUs "
       "in CUDA_VISIBLE_DEVICES"},
      {"a link is down",
       {{"links", {1, 0, 1, 1}}},
       {},
       Level::kWarning,
       "NVLink",
       "GPU 1 has 3 active links, others 4",
       "nvidia-smi nvlink --status -i 1 shows which are down; see to bridges or, with NVSwitch, to "
       "nvidia-fabricmanager"},
      {"no bridge", {{"links", {0, 0, 0, 0}}}, {}, Level::kOk, "NVLink", "4 of 4 links active on GPU 0", ""},
      {"fabric",
       {{"fabric", 2}},
       {},
       Level::kWarning,
       "NVLink",
       "GPU 1 cannot be used yet: not registered with the fabric manager",
       "sudo systemctl start nvidia-fabricmanager; nvidia-smi -q -i 1 shows the state under Fabric"},
      {"no fabric", {{"fabric", 0}}, {}, Level::kOk, "NVLink", "4 of 4 links active on GPUs 0, 1", ""},
      {"no peer access, chipset",
       {},
       {{"read", 1}},
       Level::kWarning,
       "peer access",
       "none between GPUs 0-1: the chipset does not support it; NCCL sends through the host's memory",
       "put the GPUs behind one PCIe switch, if there is one"},
      {"GPUs without peer access",
       {},
       {{"read", 2}, {"write", 2}},
       Level::kOk,
       "peer access",
       "none between GPUs 0-1: GPUs of this kind have none; NCCL sends through the host's memory",
       ""},
      {"no peer access, slots",
       {},
       {{"write", 3}},
       Level::kWarning,
       "peer access",
       "none between GPUs 0-1: their slots do not allow it; NCCL sends through the host's memory",
       "put the GPUs behind one PCIe switch or root port, if there is one"},
      {"peer access disabled",
       {},
       {{"write", 4}},
       Level::kWarning,
       "peer access",
       "none between GPUs 0-1: an option of the driver disables it; NCCL sends through the host's memory",
       "grep -r NVreg /etc/modprobe.d shows the option; remove it and restart the host"},
      {"not supported",
       {},
       {{"write", 5}},
       Level::kOk,
       "peer access",
       "none between GPUs 0-1: GPUs of this kind have none; NCCL sends through the host's memory",
       ""},
      {"no reason",
       {},
       {{"read", 6}},
       Level::kWarning,
       "peer access",
       "none between GPUs 0-1, for a reason that the driver does not report; NCCL sends through the host's memory",
       "nvidia-smi topo -p2p r shows all pairs"},
      {"no NVLink", {}, {{"nvlink", 5}}, Level::kOk, "topology", "PXB: 0-1", ""},
      {"far apart", {}, {{"nvlink", 5}, {"ancestor", 50}}, Level::kOk, "topology", "SYS: 0-1", ""},
      {"one switch", {}, {{"nvlink", 5}, {"ancestor", 10}}, Level::kOk, "topology", "PIX: 0-1", ""},
      {"host bridge", {}, {{"nvlink", 5}, {"ancestor", 30}}, Level::kOk, "topology", "PHB: 0-1", ""},
      {"node", {}, {{"nvlink", 5}, {"ancestor", 40}}, Level::kOk, "topology", "NODE: 0-1", ""},
  };
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.what);
    Json seen = healthy();
    if (!fault.gpu.is_null()) seen["gpus"][1].update(fault.gpu);
    if (!fault.pair.is_null()) seen["pairs"]["0-1"].update(fault.pair);
    const std::vector<Finding> findings = SeenGpus(seen).judge();
    std::vector<Finding> same;
    for (const Finding& one : findings) {
      if (one.check == fault.check) {
        same.push_back(one);
      } else {
        EXPECT_EQ(one.level, Level::kOk) << one.check << ": " << one.text;
      }
    }
    ASSERT_THAT(same, SizeIs(1));
    EXPECT_EQ(same[0].level, fault.level);
    EXPECT_EQ(same[0].text, fault.text);
    EXPECT_EQ(same[0].remedy, fault.remedy);
  }
}

TEST(GpuSetups, AnIommuThatIsOnIsNamedWherePeerAccessLacks) {
  Json seen = healthy();
  EXPECT_EQ(SeenGpus(seen).text(), SeenGpus(seen).text(true)) << "it prevents nothing";
  for (const int status : {1, 3, 6}) {
    seen["pairs"]["0-1"]["read"] = status;
    EXPECT_THAT(SeenGpus(seen).text(true), HasSubstr("turn IO virtualization (VT-d, AMD-Vi) off in the BIOS"));
  }
  seen["pairs"]["0-1"]["read"] = 4;
  EXPECT_EQ(SeenGpus(seen).text(), SeenGpus(seen).text(true)) << "an option of the driver does";
}

TEST(GpuSetups, EightGpusInTwoHalves) {
  Json eight = healthy();
  const Json one = eight["gpus"][0];
  eight["gpus"] = Json::array();
  eight["pairs"] = Json::object();
  for (int i = 0; i < 8; ++i) {
    eight["gpus"].push_back(one);
    for (int j = i + 1; j < 8; ++j) {
      const bool near = i / 4 == j / 4;
      eight["pairs"][std::to_string(i) + "-" + std::to_string(j)] = {
          {"ancestor", near ? 10 : 50}, {"read", near ? 0 : 3}, {"write", 0}, {"nvlink", 5}};
    }
  }
  eight["gpus"][5]["persistence"] = eight["gpus"][6]["persistence"] = eight["gpus"][7]["persistence"] = false;
  const std::string text = SeenGpus(eight).text();
  EXPECT_THAT(text, HasSubstr("mode is off on GPUs 5-7: "));
  EXPECT_THAT(text, HasSubstr("sudo nvidia-smi -pm 1 -i 5,6,7\n"));
  EXPECT_THAT(text, HasSubstr("none between 16 pairs of GPUs: their slots do not allow it"));
  EXPECT_THAT(text, HasSubstr("PIX: 12 pairs; SYS: 16 pairs\n"));
}

TEST(GpuDriver, IsJudgedWithTheGpus) {
  EXPECT_EQ(judge_driver({}, 0).text, "none: runs use CPUs");
  EXPECT_EQ(judge_driver({}, 0).check, "GPUs");
  const Finding none = judge_driver({.devices = 2}, 0);
  EXPECT_EQ(none.level, Level::kProblem);
  EXPECT_EQ(none.text, "2 NVIDIA devices, but no libcuda.so.1");
  EXPECT_THAT(none.remedy, HasSubstr("docker run --gpus all"));
  const Finding half = judge_driver({.devices = 1}, 1);
  EXPECT_EQ(half.level, Level::kProblem);
  EXPECT_EQ(half.text, "NVML lists 1 GPU, but there is no libcuda.so.1");
  EXPECT_THAT(half.remedy, HasSubstr("NVIDIA_DRIVER_CAPABILITIES=compute,utility"));
  const Finding good = judge_driver({.devices = 2, .library = true, .cuda = 13010, .version = "590.44.01"}, 2);
  EXPECT_EQ(good.level, Level::kOk);
  EXPECT_EQ(good.text, "590.44.01, for CUDA up to 13.1");
  const Finding old = judge_driver({.devices = 2, .library = true, .cuda = 12080, .version = "570.86.10"}, 2);
  EXPECT_EQ(old.level, Level::kProblem);
  EXPECT_EQ(old.text, "570.86.10, for CUDA up to 12.8; libtorch is built for CUDA 13.0");
  EXPECT_THAT(old.remedy, StartsWith("install NVIDIA's driver 580 or later; "));
  const DriverSeen older{.devices = 2, .library = true, .cuda = 12040, .version = "550.54.14"};
  EXPECT_EQ(judge_driver(older, 2, 12080).level, Level::kOk) << "CUDA 12.8 runs with every driver for CUDA 12";
  const Finding oldest = judge_driver({.devices = 2, .library = true, .cuda = 11080, .version = {}}, 2, 12080);
  EXPECT_EQ(oldest.text, "for CUDA up to 11.8; libtorch is built for CUDA 12.8");
  EXPECT_EQ(oldest.remedy, "install NVIDIA's driver 525 or later");
  EXPECT_EQ(judge_driver({.devices = 2, .library = true, .cuda = 13000, .version = {}}, 0).text,
            "for CUDA up to 13.0; it lists no GPU, and there are 2 NVIDIA devices");
  EXPECT_EQ(judge_driver({.devices = 2, .library = true, .cuda = 0, .version = {}}, 2).level, Level::kWarning);
}

TEST(GpuDriver, NodesThatCannotBeUsed) {
  EXPECT_THAT(judge_nodes({}), IsEmpty());
  EXPECT_THAT(judge_nodes({{"nvidia-uvm", true}, {"nvidia0", true}, {"nvidiactl", true}}), IsEmpty());
  const std::vector<Finding> closed = judge_nodes({{"nvidia-uvm", true}, {"nvidia0", false}, {"nvidiactl", false}});
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_EQ(closed[0].level, Level::kProblem);
  EXPECT_EQ(closed[0].text, "this user may not read and write /dev/nvidia0 and /dev/nvidiactl");
  EXPECT_THAT(closed[0].remedy, HasSubstr("sudo usermod -aG GROUP $USER"));
  const std::vector<Finding> no_uvm = judge_nodes({{"nvidia0", true}, {"nvidiactl", true}});
  ASSERT_THAT(no_uvm, SizeIs(1));
  EXPECT_EQ(no_uvm[0].text, "there is no /dev/nvidia-uvm, without which CUDA does not start");
  EXPECT_THAT(no_uvm[0].remedy, HasSubstr("sudo nvidia-modprobe -u -c=0"));
}

TEST(GpuDriver, NodesAreFoundByTheirNames) {
  const TestRun run;
  for (const char* name : {"nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia-caps", "null"}) {
    std::ofstream(run.folder() / name) << "";
  }
  std::vector<std::string> names;
  for (const DeviceNode& one : nvidia_nodes(run.folder())) {
    if (one.usable) names.push_back(one.name);
  }
  EXPECT_THAT(names, testing::ElementsAre("nvidia-uvm", "nvidia0", "nvidia12", "nvidiactl"));
  EXPECT_THAT(nvidia_nodes(run.folder() / "not-there"), IsEmpty());
}

TEST(GpuDriver, WhichGpusCanBeUsed) {
  host::GpuInfo gpu{.index = 3, .uuid = "GPU-x", .name = "Fake", .total_memory = 1 << 30};
  EXPECT_EQ(judge_gpu(gpu).text, "Fake, 1.0 GiB, GPU-x");
  gpu.compute_capability = 7.5;
  EXPECT_EQ(judge_gpu(gpu).level, Level::kOk);
  EXPECT_EQ(judge_gpu(gpu).text, "Fake, 1.0 GiB, compute capability 7.5, GPU-x");
  gpu.compute_capability = 7.0;
  EXPECT_EQ(judge_gpu(gpu).level, Level::kProblem);
  EXPECT_THAT(judge_gpu(gpu).text, HasSubstr("libtorch has kernels for compute capability 7.5 and later"));
  EXPECT_THAT(judge_gpu(gpu).remedy, HasSubstr("CUDA_VISIBLE_DEVICES"));
  gpu.problem = "it needs a reset";
  EXPECT_EQ(judge_gpu(gpu).level, Level::kProblem);
  EXPECT_THAT(judge_gpu(gpu).remedy, HasSubstr("sudo nvidia-smi --gpu-reset -i 3"));
}

CudaProbe good_probe() {
  CudaProbe probe;
  probe.libtorch_cuda.path = "/t/lib/libtorch_cuda.so";
  probe.cuda = {"/n/libcudart.so.13", "", 13000};
  probe.nccl = {"/n/libnccl.so.2", "", 22809};
  probe.gpus = 2;
  return probe;
}

Finding of(const std::vector<Finding>& findings, const std::string& check) {
  for (const Finding& one : findings) {
    if (one.check == check) return one;
  }
  ADD_FAILURE() << "no finding about " << check;
  return {};
}

TEST(CudaLibraries, AreJudged) {
  for (const Finding& one : judge_cuda(good_probe(), {}, 2, {})) EXPECT_EQ(one.level, Level::kOk) << one.text;
  EXPECT_EQ(of(judge_cuda(good_probe(), {}, 2, {}), "NCCL").text, "2.28.9, /n/libnccl.so.2");
  EXPECT_EQ(of(judge_cuda(good_probe(), {}, 2, {}), "CUDA").text, "13.0, shows a process 2 of 2 GPUs");

  CudaProbe small = good_probe();
  small.libtorch_cuda = {"", "libcufile.so.0: cannot open shared object file", 0};
  const Finding lacks = of(judge_cuda(small, {"libcudnn.so.9", "libcufile.so.0"}, 2, {}), "libtorch_cuda");
  EXPECT_EQ(lacks.level, Level::kProblem);
  EXPECT_EQ(lacks.text, "libtorch_cuda.so cannot be opened: it needs libcudnn.so.9 and libcufile.so.0");
  EXPECT_THAT(lacks.remedy, HasSubstr("dtrain-get-libtorch --flavour full"));
  EXPECT_THAT(of(judge_cuda(small, {}, 2, {}), "libtorch_cuda").text, HasSubstr("cannot be opened: libcufile.so.0: "));

  CudaProbe old = good_probe();
  old.nccl.version = 22703;
  EXPECT_EQ(of(judge_cuda(old, {}, 2, {}), "NCCL").level, Level::kProblem);
  EXPECT_EQ(of(judge_cuda(old, {}, 2, {}), "NCCL").text, "2.27.3 (/n/libnccl.so.2) is older than 2.28");
  old.nccl = {"", "not there", 0};
  EXPECT_EQ(of(judge_cuda(old, {}, 2, {}), "NCCL").text, "cannot be opened: not there");
  old.cuda = {"", "not there either", 0};
  EXPECT_EQ(of(judge_cuda(old, {}, 2, {}), "CUDA").text, "its runtime cannot be opened: not there either");
}

TEST(CudaLibraries, GpusThatCudaDoesNotShow) {
  CudaProbe probe = good_probe();
  probe.gpus = 1;
  EXPECT_EQ(of(judge_cuda(probe, {}, 2, {}), "CUDA").level, Level::kWarning);
  EXPECT_EQ(of(judge_cuda(probe, {}, 2, "0"), "CUDA").level, Level::kOk);
  EXPECT_EQ(of(judge_cuda(probe, {}, 2, "0"), "CUDA").text,
            "13.0, shows a process 1 of 2 GPUs, with CUDA_VISIBLE_DEVICES=0");
  probe.gpus = 0;
  EXPECT_EQ(of(judge_cuda(probe, {}, 2, ""), "CUDA").level, Level::kProblem);
}

TEST(CudaLibraries, EachErrorOfCudaHasItsRemedy) {
  const std::vector<std::pair<int, std::string>> remedies{{35, "driver 580 or later"},
                                                          {100, "docker run --gpus all"},
                                                          {802, "sudo systemctl start nvidia-fabricmanager"},
                                                          {803, "restart the host"},
                                                          {804, "out of LD_LIBRARY_PATH"},
                                                          {805, "MPS"},
                                                          {999, "nvidia-modprobe"},
                                                          {46, "nvidia-smi and dmesg say more"}};
  for (const auto& [error, remedy] : remedies) {
    CudaProbe probe = good_probe();
    probe.error = error;
    probe.error_text = "words of CUDA";
    const Finding finding = of(judge_cuda(probe, {}, 2, {}), "CUDA");
    EXPECT_EQ(finding.level, Level::kProblem);
    EXPECT_EQ(finding.text, "does not start: words of CUDA (error " + std::to_string(error) + ")");
    EXPECT_THAT(finding.remedy, HasSubstr(remedy));
  }
}

TEST(CudaLibraries, AProbeSurvivesItsMessage) {
  CudaProbe probe = good_probe();
  probe.error = 802;
  probe.error_text = "not yet";
  probe.nccl.error = "x";
  EXPECT_EQ(to_json(cuda_probe_of(to_json(probe))), to_json(probe));
}

TEST(GpuNetwork, MattersWhereThereIsInfiniBand) {
  const TestRun run;
  const fs::path root = run.folder();
  EXPECT_FALSE(check_gpu_network(root));
  fs::create_directories(root / "sys/class/infiniband/mlx5_0");
  EXPECT_EQ(check_gpu_network(root)->level, Level::kWarning);
  EXPECT_THAT(check_gpu_network(root)->remedy, StartsWith("sudo modprobe nvidia-peermem"));
  fs::create_directories(root / "proc/driver/nvidia");
  std::ofstream(root / "proc/driver/nvidia/version") << "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64\n";
  EXPECT_EQ(check_gpu_network(root)->text, "InfiniBand reads GPU memory through DMA-BUF");
  fs::create_directories(root / "sys/module/nvidia_peermem");
  fs::create_directories(root / "sys/module/gdrdrv");
  EXPECT_EQ(check_gpu_network(root)->text, "InfiniBand reads GPU memory through nvidia-peermem; gdrcopy is loaded");
}

// `dtrain doctor` on a machine with the GPUs of a description, and with CUDA's libraries.
struct Doctor {
  explicit Doctor(const Json& description) : gpus(run.folder()) {
    gpus.describe(description);
    for (const char* name : {"libcuda.so.1", "libcudart.so.13", "libnccl.so.2", "libtorch_cuda.so"}) {
      fs::copy_file(fs::path(DTRAIN_BINARY_DIR) / "tests" / "fake_cuda_libraries.so", run.folder() / name);
    }
  }
  Json operator()(const std::string& answers = "") {
    Command command(run.folder(), {"/bin/sh", "-c",
                                   "export LD_LIBRARY_PATH=" + run.folder().string() + " DTRAIN_FAKE_CUDA='" + answers +
                                       "'; unset CUDA_VISIBLE_DEVICES; exec " + bin("dtrain") + " doctor --json"});
    code = command.wait().code;
    const Json report = Json::parse(command.out(), nullptr, false);
    EXPECT_TRUE(report.is_object()) << command.out() << command.err();
    EXPECT_EQ(code, report.at("worst") == "problem" ? 1 : 0);
    return report.at("hosts").at(0).at("findings");
  }
  TestRun run;
  harness::FakeGpus gpus;
  int code = -1;
};

Json about(const Json& findings, const std::string& check) {
  for (const Json& one : findings) {
    if (one.at("check") == check) return one;
  }
  ADD_FAILURE() << "no finding about " << check << " in " << findings.dump();
  return {{"level", ""}, {"text", ""}, {"remedy", ""}};
}

bool has_torch() {
  return fs::exists(bin("dtrain-worker"));
}

TEST(DoctorOnGpus, AllIsWell) {
  Doctor doctor(healthy());
  const Json findings = doctor();
  for (const char* check : {"CUDA driver", "GPU 0", "GPU 1", "persistence", "compute mode", "MIG mode", "ECC", "clocks",
                            "GPU processes", "NVLink", "peer access", "topology"}) {
    EXPECT_EQ(about(findings, check).at("level"), "ok") << about(findings, check);
  }
  EXPECT_EQ(about(findings, "CUDA driver").at("text"), "580.65.06, for CUDA up to 13.0");
  EXPECT_EQ(about(findings, "GPU 0").at("text"), "Fake A, 14.9 GiB, compute capability 9.0, GPU-aaaa");
  if (!has_torch()) GTEST_SKIP() << "built without libtorch: no library of CUDA is opened";
  EXPECT_EQ(about(findings, "libtorch_cuda").at("text"), doctor.run.folder().string() + "/libtorch_cuda.so");
  EXPECT_EQ(about(findings, "CUDA").at("text"), "13.0, shows a process 2 of 2 GPUs");
  EXPECT_EQ(about(findings, "NCCL").at("text"), "2.28.9, " + doctor.run.folder().string() + "/libtorch_cuda.so")
      << "libtorch_cuda's own comes first";
  EXPECT_EQ(doctor.code, 0);
}

TEST(DoctorOnGpus, OldDriverOldNcclAndCudaThatDoesNotStart) {
  Doctor doctor(healthy());
  const Json findings = doctor("driver=12080 nccl=22703 error=802");
  EXPECT_EQ(doctor.code, 1);
  EXPECT_EQ(about(findings, "CUDA driver").at("text"),
            "580.65.06, for CUDA up to 12.8; libtorch is built for CUDA 13.0");
  if (!has_torch()) GTEST_SKIP() << "built without libtorch: no library of CUDA is opened";
  EXPECT_EQ(about(findings, "CUDA").at("text"), "does not start: system not yet initialized (error 802)");
  EXPECT_EQ(about(findings, "NCCL").at("level"), "problem");
}

TEST(DoctorOnGpus, ALibtorchForCuda12) {
  if (!has_torch()) GTEST_SKIP() << "built without libtorch: no library of CUDA is opened";
  Doctor doctor(healthy());
  std::ofstream(doctor.run.folder() / "libtorch_cuda.so") << "no library\n";
  std::ofstream(doctor.run.folder() / "libcudart.so.13") << "no library\n";
  fs::copy_file(fs::path(DTRAIN_BINARY_DIR) / "tests" / "fake_cuda_libraries.so",
                doctor.run.folder() / "libcudart.so.12");
  const Json findings = doctor("driver=12040 runtime=12080");
  EXPECT_EQ(about(findings, "CUDA driver").at("level"), "ok") << about(findings, "CUDA driver");
  EXPECT_EQ(about(findings, "CUDA driver").at("text"), "580.65.06, for CUDA up to 12.4");
  EXPECT_EQ(about(findings, "CUDA").at("text"), "12.8, shows a process 2 of 2 GPUs");
}

TEST(DoctorOnGpus, WithoutLibtorchCudaTheOthersAreStillOpened) {
  if (!has_torch()) GTEST_SKIP() << "built without libtorch: no library of CUDA is opened";
  Doctor doctor(healthy());
  std::ofstream(doctor.run.folder() / "libtorch_cuda.so") << "no library\n";
  const Json findings = doctor();
  EXPECT_EQ(about(findings, "CUDA").at("text"), "13.0, shows a process 2 of 2 GPUs");
  EXPECT_EQ(about(findings, "NCCL").at("text"), "2.28.9, " + doctor.run.folder().string() + "/libnccl.so.2");
}

TEST(DoctorOnGpus, AProblemOfOneGpu) {
  Json seen = healthy();
  seen["gpus"][1]["rows"] = "failed";
  seen["gpus"][0]["compute_mode"] = 2;
  Doctor doctor(seen);
  const Json findings = doctor();
  EXPECT_EQ(doctor.code, 1);
  EXPECT_EQ(about(findings, "GPU 0").at("level"), "ok");
  EXPECT_EQ(about(findings, "GPU 1").at("level"), "problem");
  EXPECT_EQ(about(findings, "compute mode").at("remedy"), "sudo nvidia-smi -c DEFAULT -i 0");
}

TEST(DoctorOnGpus, ADriverThatHangs) {
  Json seen = healthy();
  seen["gpus"][0]["hangs"] = true;
  Doctor doctor(seen);
  EXPECT_THAT(about(doctor(), "GPUs").at("text").get<std::string>(), HasSubstr("does not answer within 5 s"));
  EXPECT_EQ(doctor.code, 1);
}

TEST(DoctorOnGpus, NoGpusAreOneLine) {
  Doctor doctor({{"init", 9}, {"gpus", Json::array()}});
  fs::remove(doctor.run.folder() / "libcuda.so.1");
  int lines = 0;
  for (const Json& one : doctor()) {
    const std::string text = one.dump();
    if (text.find("GPU") != std::string::npos || text.find("NCCL") != std::string::npos) ++lines;
  }
  EXPECT_EQ(lines, 1);
}

}  // namespace
}  // namespace dtrain::launcher
