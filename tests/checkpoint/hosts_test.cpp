// Savers of several hosts that complete one checkpoint: here in one folder of one machine.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_harness.h"
#include "dtrain/base/error.h"
#include "saver/partial_folder.h"

namespace dtrain::checkpoints {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Host {
 public:
  Host(const std::filesystem::path& storage, int host, int hosts, std::size_t bytes)
      : snapshot(host == 0 ? std::vector<NamedSize>{{kModelFile, bytes}, {rank_file(0), bytes}}
                           : std::vector<NamedSize>{{rank_file(host), bytes}}) {
    SaverOptions options = options_for(storage, {1, 0});
    options.host = host;
    options.hosts = hosts;
    saver = std::make_unique<Saver>(options, snapshot.memory());
  }
  void begin(std::uint64_t number, const About& about, double patience_s = 30) {
    snapshot.fill(number);
    SaveRequest request = request_for(snapshot, number, about);
    request.patience_s = patience_s;
    saver->save(request);
  }
  SaveResult finish(std::uint64_t number) {
    snapshot.mark_copied(number);
    const auto result = saver->wait(kPatience);
    EXPECT_TRUE(result);
    return result.value_or(SaveResult{});
  }

  TestSnapshot snapshot;
  std::unique_ptr<Saver> saver;
};

class HostsTest : public testing::Test {
 protected:
  std::filesystem::path storage() const { return folder_ / "storage"; }
  TemporaryFolder folder_;
};

TEST_F(HostsTest, EachWritesItsFilesAndHostZeroCompletes) {
  std::vector<std::unique_ptr<Host>> hosts;
  for (int host = 0; host < 3; ++host) hosts.push_back(std::make_unique<Host>(storage(), host, 3, 10'000));
  for (std::uint64_t number = 1; number <= 2; ++number) {
    const About about = about_step(static_cast<std::int64_t>(number));
    // The other hosts first: they wait for host 0 to begin.
    for (const int host : {2, 1, 0}) hosts[static_cast<std::size_t>(host)]->begin(number, about);
    for (const int host : {0, 1, 2}) hosts[static_cast<std::size_t>(host)]->snapshot.mark_copied(number);
    for (const auto& host : hosts) {
      const SaveResult result = host->finish(number);
      EXPECT_EQ(result.error, "");
      EXPECT_EQ(result.path, storage() / ("step-" + std::to_string(number)));
    }
  }
  EXPECT_THAT(names_in(storage()), ElementsAre("step-2"));
  EXPECT_THAT(names_in(storage() / "step-2"),
              ElementsAre("manifest.json", "model.safetensors", "rank-0000.safetensors", "rank-0001.safetensors",
                          "rank-0002.safetensors", "state.json"));
  EXPECT_THAT(verify(storage() / "step-2"), IsEmpty());
  EXPECT_TRUE(read_file(storage() / "step-2" / rank_file(2)) == hosts[2]->snapshot.contents()[0]);
}

TEST_F(HostsTest, FailureOfAnotherHostIsNamed) {
  Host first(storage(), 0, 2, 5000);
  Host second(storage(), 1, 2, 5000);
  first.begin(1, about_step(1));
  SaveRequest request = request_for(second.snapshot, 1, about_step(1));
  request.files[0].name = "model.safetensors/below";  // cannot be made
  second.saver->save(request);
  const SaveResult there = second.finish(1);
  EXPECT_THAT(there.error, HasSubstr("model.safetensors/below"));
  const SaveResult here = first.finish(1);
  EXPECT_THAT(here.error, HasSubstr("host 1: cannot write "));
  EXPECT_THAT(names_in(storage()), IsEmpty());
}

TEST_F(HostsTest, StorageThatIsNotSharedIsSaid) {
  Host first(storage(), 0, 2, 5000);
  std::filesystem::create_directory(folder_ / "elsewhere");
  Host second(folder_ / "elsewhere", 1, 2, 5000);
  first.begin(1, about_step(1), 0.3);
  second.begin(1, about_step(1), 0.3);
  EXPECT_THAT(second.finish(1).error, HasSubstr("host 0 has not begun the checkpoint in time: there is no " +
                                                (folder_ / "elsewhere").string()));
  EXPECT_THAT(first.finish(1).error, HasSubstr("do all hosts see the same folder under this path?"));
  EXPECT_THAT(names_in(storage()), IsEmpty());
  EXPECT_THAT(names_in(folder_ / "elsewhere"), IsEmpty());
}

// The rank of host 1 has died before its host's part was complete; then that of host 0.
TEST_F(HostsTest, RankThatIsGoneEndsTheWait) {
  Host first(storage(), 0, 2, 5000);
  first.begin(1, about_step(1), 600);
  first.snapshot.mark_copied(1);
  {
    Host second(storage(), 1, 2, 5000);
    second.begin(1, about_step(1));
  }
  const SaveResult result = first.finish(1);
  EXPECT_THAT(result.error, HasSubstr("host 1: the run has ended before all ranks had copied"));
}

// What an earlier try has left is not taken for a part of this one.
TEST_F(HostsTest, PartsOfAnEarlierTryAreNotTaken) {
  std::filesystem::create_directories(storage());
  const OpenFolder before = make_partial(storage(), 7);
  const std::string old_token = write_beginning(before, about_step(7));
  write_host_part(before, old_token, 1, {}, "");
  EXPECT_TRUE(find_host_part(before, old_token, 1));

  About again = about_step(7);
  again.time += 1;
  EXPECT_FALSE(find_beginning(storage() / ".partial-step-7", again));  // host 1 is ahead of host 0
  const OpenFolder now = make_partial(storage(), 7);
  const std::string token = write_beginning(now, again);
  EXPECT_NE(token, old_token);
  EXPECT_FALSE(find_host_part(now, token, 1));
  EXPECT_TRUE(find_beginning(storage() / ".partial-step-7", again));
  // A saver of the earlier try cannot write into the new folder.
  EXPECT_THROW(write_host_part(before, old_token, 1, {}, ""), SystemError);
  EXPECT_FALSE(find_host_part(now, token, 1));
}

}  // namespace
}  // namespace dtrain::checkpoints
