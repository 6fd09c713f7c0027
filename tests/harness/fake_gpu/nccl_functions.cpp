// NCCL's functions for communicators and memory.
#include <cstring>
#include <random>

#include "cuda_call.h"
#include "cuda_errors.h"
#include "nccl_communicators.h"

namespace dtrain::test::fake_gpu {

namespace {

constexpr const char* kNamePrefix = "dtrain-fake-nccl-";
constexpr std::size_t kNameRoom = 64;  // the rest of an id shows whether it was changed on its way

char filler_at(std::size_t i, char salt) {
  return static_cast<char>('A' + (i * 7 + static_cast<unsigned char>(salt)) % 26);
}

ncclUniqueId new_id() {
  std::random_device random;
  std::string name = kNamePrefix;
  for (int i = 0; i < 16; ++i) name += "0123456789abcdef"[random() % 16];
  ncclUniqueId id{};
  name.copy(id.internal, kNameRoom);
  for (std::size_t i = kNameRoom; i < sizeof id.internal; ++i) id.internal[i] = filler_at(i, name.back());
  return id;
}

// Empty: it is no id of this library.
std::string name_in(const ncclUniqueId& id) {
  const std::string name(id.internal, ::strnlen(id.internal, kNameRoom));
  if (!name.starts_with(kNamePrefix)) return {};
  for (std::size_t i = kNameRoom; i < sizeof id.internal; ++i) {
    if (id.internal[i] != filler_at(i, name.back())) return {};
  }
  return name;
}

}  // namespace

ncclResult_t nccl_call(const std::function<ncclResult_t()>& f) noexcept {
  const auto cuda_failure = [](int code) {
    communicators().refuse(ncclUnhandledCudaError,
                           "Cuda failure " + std::to_string(code) + " '" + cuda_error_text(code) + "'", false);
    return ncclUnhandledCudaError;
  };
  try {
    const std::scoped_lock lock(machine().mutex);
    return f();
  } catch (const c10::AcceleratorError& error) {
    return cuda_failure(error.get_error_code());
  } catch (const c10::OutOfMemoryError&) {
    return cuda_failure(cudaErrorMemoryAllocation);
  } catch (const std::exception& error) {
    return communicators().refuse(ncclSystemError, error.what());
  }
}

namespace {

ncclResult_t register_memory(ncclComm_t comm, void* data, std::size_t bytes, void** handle) {
  NcclRank* const rank = communicators().find(comm, "ncclCommRegister");
  if (rank == nullptr) return ncclInvalidArgument;
  Block* const block = machine().memory.live_block(data, bytes);
  if (block == nullptr || block->origin != Origin::kNccl || block->device != rank->device) {
    return communicators().refuse(ncclInvalidArgument,
                                  "ncclCommRegister of memory that ncclMemAlloc has not allocated "
                                  "on the communicator's device, or that was freed");
  }
  ++block->registrations;
  block->was_registered = true;
  *handle = reinterpret_cast<void*>(rank->next_handle++);
  rank->registered[*handle] = data;
  return ncclSuccess;
}

ncclResult_t deregister_memory(ncclComm_t comm, void* handle) {
  NcclRank* const rank = communicators().find(comm, "ncclCommDeregister", true);
  if (rank == nullptr) return ncclInvalidArgument;
  const auto found = rank->registered.find(handle);
  if (found == rank->registered.end()) {
    return communicators().refuse(ncclInvalidArgument, "ncclCommDeregister of memory that is not registered");
  }
  if (Block* const block = machine().memory.live_block(found->second, 1)) --block->registrations;
  rank->registered.erase(found);
  return ncclSuccess;
}

ncclResult_t number_of(ncclComm_t comm, int* number, const char* what, int (*pick)(const NcclRank&)) {
  return nccl_call([&] {
    const NcclRank* const rank = communicators().find(comm, what);
    if (rank == nullptr) return ncclInvalidArgument;
    *number = pick(*rank);
    return ncclSuccess;
  });
}

}  // namespace

}  // namespace dtrain::test::fake_gpu

using namespace dtrain::test::fake_gpu;  // NOLINT(google-build-using-namespace): what follows has C's names

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}
const char* ncclGetLastError(ncclComm_t comm) {
  const std::scoped_lock lock(machine().mutex);
  return communicators().last_error(comm);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return nccl_call([&] {
    *id = new_id();
    return ncclSuccess;
  });
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return nccl_call([&] {
    const std::string name = name_in(id);
    if (name.empty()) {
      return communicators().refuse(ncclInvalidArgument,
                                    "the id is not what ncclGetUniqueId has made: all 128 bytes count");
    }
    return communicators().connect(comm, name, ranks, rank, config);
  });
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  return nccl_call([&] { return communicators().state(comm, state); });
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return nccl_call([&] { return communicators().finalize(comm); });
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return nccl_call([&] { return communicators().destroy(comm); });
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return nccl_call([&] { return communicators().abort(comm); });
}
ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  return nccl_call([&] { return communicators().revoke(comm); });
}
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int count, ncclComm_t* made, ncclConfig_t* config,
                            int flags) {
  return nccl_call(
      [&] { return communicators().shrink(comm, std::vector<int>(excluded, excluded + count), made, config, flags); });
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return number_of(comm, count, "ncclCommCount", [](const NcclRank& rank) { return rank.ranks; });
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* number) {
  return number_of(comm, number, "ncclCommUserRank", [](const NcclRank& rank) { return rank.rank; });
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  return number_of(comm, device, "ncclCommCuDevice", [](const NcclRank& rank) -> int { return rank.device; });
}

ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  return nccl_call([&] {
    machine().adversaries.check(current_device());
    *data = machine().memory.allocate(bytes, Origin::kNccl);
    return ncclSuccess;
  });
}
ncclResult_t ncclMemFree(void* data) {
  return nccl_call([&] {
    if (data != nullptr) machine().memory.free(data, Origin::kNccl);
    return ncclSuccess;
  });
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t bytes, void** handle) {
  return nccl_call([&] { return register_memory(comm, data, bytes, handle); });
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return nccl_call([&] { return deregister_memory(comm, handle); });
}

}  // extern "C"
