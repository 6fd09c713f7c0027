// The stacks that signals make a process write, as they are read, and what is known of its collectives.
#include <cstring>
#include <fstream>

#include <gmock/gmock.h>

#include "dtrain/base/pulse.h"
#include "launch/hanging_ranks.h"
#include "run_harness.h"

namespace dtrain::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kNative =
    "thread 71 rank\n"
    "/lib/libc.so.6(+0x8f14a) [0x7f01]\n"
    "/lib/libc.so.6(pthread_mutex_lock+0x112) [0x7f02]\n"
    "/opt/lib/libdtrain_comm.so.0.1(_ZN6dtrain4comm9Operation4waitEv+0x12) [0x7f03]\n"
    "./trial(_ZNSt11this_thread9sleep_forIlEEvv+0x4) [0x5501]\n"
    "./trial(_ZN5Model7forwardEi+0x44) [0x5502]\n"
    "./trial(main+0x1) [0x5503]\n"
    "end 71\n";

TEST(ThreadStacks, NameCallsAndThePlaceInTheUsersOwnCode) {
  const ThreadStacks stacks =
      read_stacks(std::string(kNative) + "thread 72 other\n/lib/libc.so.6(poll+0x4f) [0x7f04]\nend 72\n", "trial", "");
  EXPECT_EQ(stacks.place, "Model::forward(int) in trial");
  EXPECT_THAT(stacks.calls,
              ElementsAre("pthread_mutex_lock in libc.so.6", "dtrain::comm::Operation::wait() in libdtrain_comm.so.0.1",
                          "void std::this_thread::sleep_for<long>() in trial", "Model::forward(int) in trial",
                          "main in trial"));
  EXPECT_THAT(stacks.text, HasSubstr("thread 72 other\n  poll in libc.so.6\n"));
}

TEST(ThreadStacks, LeaveLongListsOfArgumentsOut) {
  std::string line = "./trial(_ZN12_GLOBAL__N_13fitE";
  for (int i = 0; i < 60; ++i) line += "l";
  const ThreadStacks stacks = read_stacks("thread 71 rank\n" + line + "+0x4) [0x5501]\nend 71\n", "trial", "");
  EXPECT_EQ(stacks.place, "(anonymous namespace)::fit(…) in trial");
}

TEST(ThreadStacks, PutPythonFirstAndItsTrainingThreadBeforeTheOthers) {
  const std::string python =
      "Thread 0x00007f11 (most recent call first):\n"
      "  File \"/usr/lib/python3.11/threading.py\", line 320 in wait\n"
      "\n"
      "Current thread 0x00007f10 (most recent call first):\n"
      "  File \"/usr/lib/python3.11/site-packages/torch/nn/modules/module.py\", line 1511 in _call_impl\n"
      "  File \"/home/me/train.py\", line 87 in train_batch\n"
      "  File \"/home/me/train.py\", line 120 in <module>\n";
  const ThreadStacks stacks = read_stacks(python + kNative, "python3.11", "");
  EXPECT_EQ(stacks.place, "/home/me/train.py:87 in train_batch");
  EXPECT_EQ(stacks.calls.size(), 3u);
  EXPECT_LT(stacks.text.find("Current thread"), stacks.text.find("threading.py"));
  EXPECT_LT(stacks.text.find("threading.py"), stacks.text.find("pthread_mutex_lock"));
}

TEST(FlightDump, HasWhatHasEndedAndWhatARankWaitsFor) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "rank-0000.jsonl";
  std::ofstream(file) << R"({"record":"step","batch":1})"
                      << "\n"
                      << R"({"record":"collective","batch":1,"sequence":7,"operation":"reduce_parts","bytes":64,)"
                      << R"("enqueued_ns":10,"ended_ns":30})"
                      << "\n{\"record\":\"coll";
  PulsePage page;
  const Json before = flight_record(file, 2, &page);
  ASSERT_EQ(before["entries"].size(), 1u);
  EXPECT_EQ(before["entries"][0]["profiling_name"], "dtrain:reduce_scatter");
  EXPECT_EQ(before["entries"][0]["state"], "completed");
  EXPECT_EQ(before["pg_config"]["0"]["ranks"], "[0, 1]");
  std::strcpy(page.operation.data(), "all_reduce");
  page.sequence = 8;
  page.waits = 1;
  const Json now = flight_record(file, 2, &page);
  ASSERT_EQ(now["entries"].size(), 2u);
  EXPECT_EQ(now["entries"][1]["collective_seq_id"], 8);
  EXPECT_EQ(now["entries"][1]["state"], "started");
  EXPECT_EQ(now["pg_status"]["0"]["last_completed_collective"], 7);
  // python3 -c "import pickle; print(pickle.loads(…))"
  EXPECT_EQ(pickle_of(Json::parse(R"({"a":[1,true,null,"b"]})")),
            std::string("\x80\x02}(X\x01\0\0\0a](\x8a\x08\x01\0\0\0\0\0\0\0\x88NX\x01\0\0\0beu.", 33));
}

}  // namespace
}  // namespace dtrain::launcher
