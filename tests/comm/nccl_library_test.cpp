// The module and the libraries it opens: the real ones where they are (no GPU is needed to ask NCCL for its version),
// and the errors where they are not.
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "nccl/abi.h"
#include "nccl_ranks.h"

namespace dtrain::comm {
namespace {

using testing::HasSubstr;

template <class Fn>
CommError error_of(const Fn& fn) {
  try {
    fn();
  } catch (const CommError& error) {
    return error;
  }
  return CommError("no error");
}

TEST(NcclLibrary, AMissingLibraryIsNamedWithWhatToDo) {
  NcclLibraries libraries = nccl_libraries();
  libraries.cuda = {"libcudart.so.nowhere", "libcudart.so.neither"};
  const CommError error = error_of([&] { open_nccl(libraries); });
  EXPECT_THAT(
      error.what(),
      HasSubstr("the nccl backend needs libcudart.so.nowhere or libcudart.so.neither, which cannot be opened: "));
  EXPECT_THAT(error.remedy(), HasSubstr("dtrain-get-libtorch"));
}

TEST(NcclLibrary, ALibraryThatLacksAFunctionIsNamed) {
  NcclLibraries libraries;
  libraries.cuda = {"libz.so.1"};
  libraries.nccl = {"libz.so.1"};
  EXPECT_THAT(error_of([&] { open_nccl(libraries); }).what(), HasSubstr("libz.so.1 has no nccl"));
}

TEST(NcclLibrary, ABrokenFileInAFolderIsNamed) {
  const std::string folder = testing::TempDir() + "/nccl_library_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/libcudart.so.nowhere") << "no library\n";
  NcclLibraries libraries;
  libraries.cuda = {"libcudart.so.nowhere"};
  libraries.cuda_folders = {folder};
  EXPECT_THAT(error_of([&] { open_nccl(libraries); }).what(), HasSubstr(folder));
  std::filesystem::remove_all(folder);
}

// Whether this machine has the library at all: in one of the folders, or where the loader finds it.
bool is_here(const std::string& name, const std::vector<std::string>& folders) {
  const auto in = [&](const std::string& folder) { return std::filesystem::exists(folder + "/" + name); };
  if (std::any_of(folders.begin(), folders.end(), in)) return true;
  void* const handle = ::dlopen(name.c_str(), RTLD_LAZY);
  if (handle) ::dlclose(handle);
  return handle != nullptr;
}

// Skipped only where there is no library; one that is there must open and have all that the backend calls.
TEST(NcclLibrary, TheRealOnesHaveEveryFunction) {
  const NcclLibraries libraries = nccl_libraries();
  for (const auto& [name, folders] : {std::pair(libraries.nccl.front(), libraries.nccl_folders),
                                      std::pair(libraries.cuda.front(), libraries.cuda_folders)}) {
    if (is_here(name, folders)) continue;
    GTEST_SKIP() << "this machine has no " << name << ": not in " << testing::PrintToString(folders)
                 << " and not on the loader's path (scripts/setup.sh fetches it)";
  }
  const SharedNcclApi api = open_nccl(libraries);
  EXPECT_GE(checked_nccl_version(*api), 22800);
  EXPECT_TRUE(api->ncclCommShrink);
  EXPECT_TRUE(api->ncclCommRevoke);
  EXPECT_STREQ(api->ncclGetErrorString(ncclSuccess), "no error");
}

TEST(NcclModule, AnotherVersionOfTheInterfaceIsRefused) {
  test::run_control_ranks(test::TestWorld(1), [](ControlPlane& control) {
    const std::string path = std::string(DTRAIN_BINARY_DIR) + "/lib/libdtrain_comm_nccl.so";
    void* const module = ::dlopen(path.c_str(), RTLD_NOW);
    ASSERT_NE(module, nullptr) << ::dlerror();
    auto* const factory = reinterpret_cast<NcclModuleFactory*>(::dlsym(module, kNcclModuleFactory));
    ASSERT_NE(factory, nullptr);
    std::unique_ptr<NcclCommunicator> made;
    EXPECT_EQ(factory(kNcclModuleAbi + 1, control, {}, {}, made), kNcclModuleAbi);
    EXPECT_EQ(made, nullptr);
  });
}

// Through the module, as programs do. Without a GPU it is an error that names that; with one it works.
TEST(NcclModule, OpensOnDemand) {
  test::TestWorld world(1);
  test::run_control_ranks(world, [&](ControlPlane& control) {
    try {
      const auto comm = make_nccl_communicator(control, {}, world.communicator_options());
      EXPECT_EQ(comm->backend(), "nccl");
      std::int64_t value = 5;
      comm->all_reduce(&value, 1, DataType::kInt64).wait();
      EXPECT_EQ(value, 5);
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), testing::AnyOf(HasSubstr("looking for GPUs: CUDA reports: "),
                                               HasSubstr("cannot be opened"), HasSubstr("CUDA sees 0")));
    }
  });
}

}  // namespace
}  // namespace dtrain::comm
