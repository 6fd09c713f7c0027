// Opening a backend that is a library of its own, and the error where a part of it is missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../harness/elf.h"
#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_of(const ModuleFile& file) {
  try {
    open_module<CommError>(file);
    return "no error";
  } catch (const CommError& error) {
    return std::string(error.what()) + " / " + error.remedy();
  }
}

const ModuleFile kReal{.name = "dtrain_comm_mpi",
                       .needs = {"libmpi.so.40"},
                       .factory = "dtrain_comm_mpi_join",
                       .what = "the mpi backend",
                       .remedy_needs = "install it",
                       .remedy_module = "build it"};

TEST(Module, IsOpenedOnDemand) {
  EXPECT_NE(open_module<CommError>(kReal), nullptr);
  EXPECT_EQ(open_module<CommError>(kReal), open_module<CommError>(kReal));
}

TEST(Module, SaysWhichPartIsMissing) {
  ModuleFile file = kReal;
  file.name = "dtrain_comm_none";
  EXPECT_THAT(error_of(file), AllOf(HasSubstr("the mpi backend is not part of this dtrain: there is no "),
                                    HasSubstr("/lib/libdtrain_comm_none.so"), HasSubstr("build it")));
  file = kReal;
  file.needs = {"libnot-there.so.40"};
  EXPECT_THAT(error_of(file),
              AllOf(HasSubstr("needs libnot-there.so.40, which cannot be opened"), HasSubstr("install it")));
  file = kReal;
  file.factory = "dtrain_comm_mpi_part";
  EXPECT_THAT(error_of(file), HasSubstr("is not a module of dtrain: it has no dtrain_comm_mpi_part"));
}

// A machine without MPI runs the same programs: no library of ours asks the loader for it.
TEST(Module, NothingIsLinkedWithMpi) {
  for (const char* library : {"libdtrain_comm.so", "libdtrain_comm_mpi.so"}) {
    const std::string text = dynamic_section(DTRAIN_BINARY_DIR "/lib/" + std::string(library));
    EXPECT_THAT(text, AllOf(HasSubstr("NEEDED"), testing::Not(HasSubstr("libmpi")))) << library;
  }
}

}  // namespace
}  // namespace dtrain::comm
