// What processes do that no test can ask: their environment says it, and files tell what happened.
#include <torch/torch.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "dtrain/base/json.h"
#include "gpu_ranks.h"

namespace dtrain::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Folder {
 public:
  Folder() : path_(testing::TempDir() + "/fake_gpu_log." + std::to_string(::getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path() const { return path_; }
  // The text of the only file of that rank.
  std::string text(int rank, const std::string& ending) const {
    std::vector<std::string> texts;
    for (const auto& file : std::filesystem::directory_iterator(path_)) {
      const std::string name = file.path().filename();
      if (!name.starts_with("rank" + std::to_string(rank) + "-") || !name.ends_with(ending)) continue;
      std::ifstream stream(file.path());
      texts.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
    }
    EXPECT_EQ(texts.size(), 1u);
    return texts.empty() ? "" : texts.front();
  }

 private:
  const std::string path_;
};

TEST(FakeGpuEnvironment, FilesAreWholeAfterAKill) {
  const Folder folder;
  const Variable log("DTRAIN_FAKE_GPU_LOG", folder.path());
  const auto outcomes = run_gpu_ranks(TestWorld(2), [](const GpuRank& rank) {
    const RawNccl nccl(rank);
    auto x = at::ones({4}, at::kCUDA);
    for (int i = 0; i < 5; ++i) x.mul_(2);
    EXPECT_EQ(nccl.all_reduce(x.data_ptr(), 4, nullptr), ncclSuccess);
    x.cpu();
    const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
    const auto before = cuda.exchangeStream(cuda.getStreamFromGlobalPool(at::Device(at::kCUDA, 0), false));
    x.mul_(2);
    cuda.exchangeStream(before);
    x.sum().item<float>();
    x.sum();
    if (rank.control.world().rank == 1) ::raise(SIGKILL);
    ::_exit(0);
  });
  EXPECT_EQ(outcomes[1].status.signal, SIGKILL);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(folder.text(rank, ".reports"),
                AllOf(HasSubstr("missing wait: sum on stream 0 of cuda:0 reads what mul"), testing::EndsWith("\n")));
    const Json counts = Json::parse(folder.text(rank, ".counts.json"));
    EXPECT_EQ(counts.at("kernels"), 1 + 5 + 1 + 2);
    EXPECT_EQ(counts.at("nccl_operations"), 1);
    EXPECT_EQ(counts.at("copies_to_host"), 1);
    EXPECT_EQ(counts.at("host_syncs"), 2);
    EXPECT_EQ(counts.at("scalar_reads"), 1);
    EXPECT_EQ(counts.at("reports"), 2);
    EXPECT_EQ(counts.size(), 11u);
  }
}

// What each rank says when rank 1 has the fault.
std::vector<std::string> errors_with(const std::string& fault) {
  const Variable what("DTRAIN_FAKE_GPU_FAULT", fault), who("DTRAIN_FAKE_GPU_FAULT_RANK", "1");
  const Folder folder;
  const auto file = [&](int rank) { return folder.path() + "/" + std::to_string(rank); };
  expect_gpu_ranks(2, [&](const GpuRank& rank) {
    const RawNccl nccl(rank);
    std::string said;
    try {
      auto x = at::ones({1000}, at::kCUDA);
      for (int i = 0; i < 10; ++i) x = x * 2;
      const ncclResult_t result = nccl.all_reduce(x.data_ptr(), 1000, nullptr);
      if (result != ncclSuccess) said = nccl.api().ncclGetErrorString(result);
      rank.control.barrier("all have begun");
      ncclResult_t state = ncclSuccess;
      EXPECT_EQ(nccl.api().ncclCommGetAsyncError(nccl.handle(), &state), ncclSuccess);
      if (state != ncclSuccess) said = nccl.api().ncclGetErrorString(state);
      const bool ended = c10::impl::VirtualGuardImpl(at::kCUDA).queryStream(
          c10::Stream(c10::Stream::DEFAULT, at::Device(at::kCUDA, 0)));
      if (!ended && rank.control.world().rank == 1 && said.empty()) said = "it has not ended";
    } catch (const c10::Error& error) {
      said = error.what_without_backtrace();
      rank.control.barrier("all have begun");
    }
    std::ofstream(file(rank.control.world().rank)) << said;
    rank.control.barrier("all have ended");
    rank.gpus.heal();
  });
  std::vector<std::string> errors;
  for (const int rank : {0, 1}) {
    std::ifstream stream(file(rank));
    errors.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  return errors;
}

TEST(FakeGpuEnvironment, FaultsOfOneRank) {
  EXPECT_THAT(
      errors_with("allocation:3"),
      ElementsAre("", HasSubstr("CUDA out of memory. Tried to allocate 3.91 KiB. GPU 0 has a total capacity of")));
  EXPECT_THAT(errors_with("lost:3"), ElementsAre("", HasSubstr("CUDA error: unspecified launch failure")));
  EXPECT_THAT(errors_with("lost:3:46"), ElementsAre("", HasSubstr("is/are busy or unavailable")));
  EXPECT_THAT(errors_with("nccl_error:1"), ElementsAre("", "remote process exited or there was a network error"));
  EXPECT_THAT(errors_with("nccl_hang:1"), ElementsAre("", "it has not ended"));
  EXPECT_THAT(errors_with("nccl_hang:2"), ElementsAre("", ""));
}

TEST(FakeGpuEnvironmentDeathTest, AFaultThatCannotBeRead) {
  const Variable fault("DTRAIN_FAKE_GPU_FAULT", "lost");
  EXPECT_DEATH(open_fake_gpus(kFakeGpu, 1), "DTRAIN_FAKE_GPU_FAULT=lost is not allocation:N, lost:N");
}

// The PCI bus ids that a process sees.
std::vector<std::string> bus_ids(const std::string& visible) {
  const Folder folder;
  const std::string file = folder.path() + "/ids";
  const Variable installed("DTRAIN_FAKE_GPUS", "4"), seen("CUDA_VISIBLE_DEVICES", visible);
  run_processes(TestWorld(1), [&](comm::ControlPlane&, comm::Communicator&) {
    open_fake_gpus(kFakeGpu, 1);
    const auto api = fake_api();
    auto* const bus_id = reinterpret_cast<cudaError_t (*)(char*, int, int)>(
        ::dlsym(::dlopen(kFakeGpu, RTLD_NOW | RTLD_NOLOAD), "cudaDeviceGetPCIBusId"));
    int devices = -1;
    const cudaError_t result = api->cudaGetDeviceCount(&devices);
    EXPECT_EQ(result, devices == 0 ? cudaErrorNoDevice : cudaSuccess);
    EXPECT_EQ(at::globalContext().hasCUDA(), devices > 0);
    std::ofstream ids(file);
    for (int d = 0; d < devices; ++d) {
      char id[16];
      EXPECT_EQ(bus_id(id, sizeof id, d), cudaSuccess);
      ids << id << ' ';
    }
  });
  std::vector<std::string> ids;
  std::ifstream stream(file);
  for (std::string id; stream >> id;) ids.push_back(id);
  return ids;
}

TEST(FakeGpuEnvironment, VisibleDevices) {
  EXPECT_THAT(bus_ids("2,0"), ElementsAre("0000:02:00.0", "0000:00:00.0"));
  EXPECT_THAT(bus_ids("GPU-fake0000-0000-0000-0000-000000000003,1"), ElementsAre("0000:03:00.0", "0000:01:00.0"));
  EXPECT_THAT(bus_ids("1,7,0"), ElementsAre("0000:01:00.0"));  // up to the first that is not there
  EXPECT_THAT(bus_ids("1,1"), IsEmpty());
  EXPECT_THAT(bus_ids("GPU-fake"), IsEmpty());  // it could be any
  EXPECT_THAT(bus_ids(""), IsEmpty());
}

}  // namespace
}  // namespace dtrain::test
