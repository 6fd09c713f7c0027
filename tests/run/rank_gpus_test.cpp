// Which GPU each rank trains on: what all ranks decide alike from what each sees, and what a rank of a job is told on
// its host. The ranks are threads of this process.
#include "compare_ranks.h"

#include <future>

#include <gmock/gmock.h>

#include "commands/job_command.h"
#include "commands/share_of_rank.h"
#include "dtrain/base/text.h"
#include "dtrain/rank/gpus_seen.h"
#include "dtrain/rank/rank_session.h"
#include "membership.h"
#include "plan/launch_plan.h"
#include "run_harness.h"

namespace dtrain::launcher {
namespace {

using config::SlotType;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

rank::GpuView view_of(const std::vector<std::string>& uuids) {
  rank::GpuView view;
  for (const std::string& uuid : uuids) {
    const auto index = static_cast<int>(view.gpus.size());
    view.gpus.push_back({uuid, host::GpuInfo{.index = index, .uuid = uuid, .name = "A"}});
  }
  if (uuids.empty()) view.why_none = "the driver sleeps";
  return view;
}

struct RankHere {
  std::string host;
  rank::GpuView view;
};

struct Chosen {
  std::optional<rank::RankGpus> gpus;
  std::string error;
};

// What each of these ranks chooses.
std::vector<Chosen> choose(SlotType wanted, const std::vector<RankHere>& ranks) {
  const TemporaryFolder folder;
  std::vector<rank::RankHosts::Host> hosts;
  for (const RankHere& rank : ranks) hosts.push_back({rank.host, rank.host});
  std::vector<std::future<Chosen>> ended;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    ended.push_back(std::async(std::launch::async, [&, i]() -> Chosen {
      const auto size = static_cast<int>(ranks.size());
      const auto rank = static_cast<int>(i);
      const comm::ControlOptions options{.world = {.rank = rank, .size = size, .local_rank = rank, .local_size = size},
                                         .timeout = kHangs,
                                         .log = make_null_logger()};
      rank::Membership membership;
      size == 1 ? rank::connect_alone(membership, options)
                : rank::connect_by_file(membership, options, folder.path() / "rendezvous");
      Chosen chosen;
      try {
        chosen.gpus =
            rank::choose_gpus(membership.control(), rank::RankHosts(hosts[i], hosts), wanted, ranks[i].view, false);
      } catch (const rank::AgreedError& error) {
        chosen.error = error.what();
      }
      membership.finish();
      return chosen;
    }));
  }
  std::vector<Chosen> all;
  for (auto& one : ended) all.push_back(one.get());
  return all;
}

// "0 1": the CUDA index of each rank; "cpu"; or the error, which must be the same on all.
std::string outcome(SlotType wanted, const std::vector<RankHere>& ranks) {
  std::vector<std::string> parts;
  for (const Chosen& chosen : choose(wanted, ranks)) {
    if (!chosen.gpus) {
      parts.push_back(chosen.error);
    } else {
      parts.push_back(chosen.gpus->cuda_index ? std::to_string(*chosen.gpus->cuda_index) : "cpu");
    }
  }
  if (std::all_of(parts.begin(), parts.end(), [&](const std::string& part) { return part == parts.front(); })) {
    return parts.front();
  }
  return join(parts, " ");
}

TEST(ChooseGpus, EachRankTakesThatOfItsLocalRank) {
  const rank::GpuView two = view_of({"GPU-a", "GPU-b"});
  for (const SlotType wanted : {SlotType::kCuda, SlotType::kAuto}) {
    EXPECT_EQ(outcome(wanted, {{"x", two}, {"x", two}}), "0 1");
    EXPECT_EQ(outcome(wanted, {{"x", two}}), "0");
    EXPECT_EQ(outcome(wanted, {{"x", two}, {"y", two}, {"x", two}, {"y", two}}), "0 0 1 1");
  }
  EXPECT_EQ(outcome(SlotType::kCpu, {{"x", two}, {"x", two}}), "cpu");
  const auto chosen = choose(SlotType::kCuda, {{"x", two}, {"y", two}, {"x", two}});
  ASSERT_TRUE(chosen[1].gpus);
  EXPECT_EQ(chosen[1].gpus->ranks.at(0)->uuid, "GPU-a");
  EXPECT_EQ(chosen[1].gpus->ranks.at(2)->uuid, "GPU-b");
}

TEST(ChooseGpus, ARankThatSeesOneTakesThatOne) {
  EXPECT_EQ(outcome(SlotType::kCuda, {{"x", view_of({"GPU-a"})}, {"x", view_of({"GPU-b"})}}), "0");
  EXPECT_THAT(outcome(SlotType::kCuda, {{"x", view_of({"GPU-a"})}, {"x", view_of({"GPU-a"})}}),
              HasSubstr("host x: 2 ranks, but ranks 0 and 1 see one GPU, the same (GPU-a)"));
  EXPECT_EQ(outcome(SlotType::kAuto, {{"x", view_of({"GPU-a"})}, {"x", view_of({"GPU-a"})}}), "cpu");
}

TEST(ChooseGpus, RanksShareOneIfAllOfThemWereToldTo) {
  const auto view = [](const std::string& shares_as) {
    rank::GpuView one = view_of({"GPU-a"});
    one.shares_as = shares_as;
    return RankHere{"x", one};
  };
  const auto refused = HasSubstr("see one GPU, the same");
  EXPECT_EQ(outcome(SlotType::kCuda, {view("host 0"), view("host 1"), view("host 2")}), "0");
  EXPECT_THAT(outcome(SlotType::kCuda, {view("host 0"), view("host 1"), view("host 1")}), refused);
  EXPECT_THAT(outcome(SlotType::kCuda, {view("host 0"), view("")}), refused);
  EXPECT_THAT(outcome(SlotType::kCuda, {view(""), view("host 1")}), refused);
  const std::string allowed = "NCCL_MULTI_RANK_GPU_ENABLE";
  EXPECT_EQ(outcome(SlotType::kCuda, {view(allowed), view(allowed)}), "0");
  EXPECT_THAT(outcome(SlotType::kCuda, {view(allowed), view("host 1")}), refused);
}

TEST(ChooseGpus, PowerSgdNeedsOneModel) {
  config::Experiment experiment;
  rank::RankGpus gpus;
  gpus.on_gpus = true;
  for (const char* name : {"A", "A", "B"}) gpus.ranks.push_back(rank::PlacedGpu{0, "GPU-a", name});
  gpus.ranks.push_back(std::nullopt);
  EXPECT_NO_THROW(rank::check_one_model(experiment, gpus));
  experiment.optimizations.gradient_compression = comm::PowerSgd{};
  EXPECT_THROW(rank::check_one_model(experiment, gpus), rank::AgreedError);
  gpus.ranks.at(2)->name = "A";
  EXPECT_NO_THROW(rank::check_one_model(experiment, gpus));
}

TEST(ChooseGpus, TooFewAreAnErrorThatCountsThem) {
  const rank::GpuView two = view_of({"GPU-a", "GPU-b"});
  const std::string few = outcome(SlotType::kCuda, {{"x", two}, {"x", two}, {"x", two}});
  EXPECT_THAT(few, HasSubstr("resources.slot_type is cuda, but host x: 3 ranks, but 2 GPUs visible to rank 0 (GPU-a, "
                             "GPU-b)"));
  EXPECT_THAT(outcome(SlotType::kCuda, {{"x", view_of({})}}),
              HasSubstr("host x: no GPU is visible to rank 0: the driver sleeps"));
}

TEST(ChooseGpus, OneGpuForTwoRanksIsAnErrorHoweverTheyNumberIt) {
  EXPECT_THAT(outcome(SlotType::kCuda, {{"x", view_of({"GPU-a", "GPU-b"})}, {"x", view_of({"GPU-b", "GPU-a"})}}),
              HasSubstr("host x: ranks 0 and 1 would use the same GPU (GPU-a)"));
}

TEST(ChooseGpus, AutoTakesThemOnAllHostsOrOnNone) {
  const rank::GpuView one = view_of({"GPU-a"});
  const rank::GpuView none = view_of({});
  EXPECT_EQ(outcome(SlotType::kAuto, {{"x", one}, {"y", one}}), "0");
  EXPECT_EQ(outcome(SlotType::kAuto, {{"x", none}, {"y", none}}), "cpu");
  const std::string mixed = outcome(SlotType::kAuto, {{"x", one}, {"y", none}});
  EXPECT_THAT(mixed, HasSubstr("some hosts have a GPU for each of their ranks (x), but not all: host y: no GPU"));
  const auto few = choose(SlotType::kAuto, {{"x", one}, {"x", one}});
  EXPECT_THAT(few[1].gpus->why_cpu, HasSubstr("see one GPU, the same"));
  EXPECT_EQ(choose(SlotType::kAuto, {{"x", none}, {"x", none}})[0].gpus->why_cpu, "") << "there is none to use";
}

TEST(ChooseGpus, AreNotNamedWhereCudaMayNumberThemOtherwise) {
  rank::GpuView view = view_of({"GPU-a", "GPU-b"});
  view.is_order_known = false;
  const auto chosen = choose(SlotType::kCuda, {{"x", view}, {"x", view}});
  EXPECT_EQ(chosen[1].gpus->cuda_index, 1);
  EXPECT_FALSE(chosen[1].gpus->ranks.at(0));
}

host::GpuSetup setup(host::ComputeMode mode, const std::vector<host::GpuProcess>& processes) {
  host::GpuSetup result{.index = 3};
  result.compute_mode = mode;
  result.processes = processes;
  return result;
}

TEST(GpuUse, ByOthersIsAWarningOrARefusal) {
  using host::ComputeMode;
  EXPECT_EQ(rank::use_of_gpu(setup(ComputeMode::kShared, {}), "GPU 3", {}).warning, "");
  EXPECT_EQ(rank::use_of_gpu(setup(ComputeMode::kExclusiveProcess, {}), "GPU 3", {}).refusal, "");
  const std::vector<host::GpuProcess> two{{.pid = 999'999'998, .memory = 3 << 20}, {.pid = 999'999'999}};
  const rank::GpuUse shared = rank::use_of_gpu(setup(ComputeMode::kShared, two), "GPU 3", {});
  EXPECT_THAT(shared.warning,
              HasSubstr("GPU 3 is in use by process 999999998 (3.0 MiB of its memory) and process 999999999"));
  EXPECT_EQ(shared.refusal, "");
  EXPECT_EQ(rank::use_of_gpu(setup(ComputeMode::kShared, two), "GPU 3", {999'999'998, 999'999'999}).warning, "");
  const rank::GpuUse alone = rank::use_of_gpu(setup(ComputeMode::kExclusiveProcess, two), "GPU 3", {999'999'999});
  EXPECT_THAT(alone.refusal, HasSubstr("process 999999998 (3.0 MiB of its memory), and admits only one process"));
  EXPECT_THAT(alone.remedy, HasSubstr("nvidia-smi -i 3 -c DEFAULT"));
  EXPECT_THAT(rank::use_of_gpu(setup(ComputeMode::kProhibited, {}), "GPU 3", {}).refusal, HasSubstr("PROHIBITED"));
}

std::vector<scheduler::ClusterSlot> four_gpus() {
  std::vector<scheduler::ClusterSlot> slots;
  for (int i = 0; i < 4; ++i) {
    slots.push_back(
        {.index = i, .cpus = {2 * i, 2 * i + 1}, .threads = 2, .gpu = i, .gpu_uuid = "GPU-" + std::to_string(i)});
  }
  slots.push_back({.index = -1, .gpu = 4, .gpu_uuid = "GPU-4", .problem = "it needs repair"});
  return slots;
}

std::string visible(const ShareOfRank& share) {
  for (const auto& [name, value] : share.variables) {
    if (name == "CUDA_VISIBLE_DEVICES") return value;
  }
  return "unset";
}

std::string gpus_error(const std::string& assignment, int rank) {
  try {
    gpus_of_rank(four_gpus(), assignment, rank, "nodeb");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(GpusOfRank, AreThoseOfItsHostInTheOrderOfTheRanks) {
  const std::string assignment = "0:GPU-9,1:2,0:GPU-8,1:GPU-0";
  const ShareOfRank second = gpus_of_rank(four_gpus(), assignment, 1, "nodeb");
  EXPECT_EQ(visible(second), "GPU-2,GPU-0");
  EXPECT_THAT(second.cpus, ElementsAre(4, 5)) << "near its own";
  EXPECT_EQ(second.threads, 2);
  const ShareOfRank last = gpus_of_rank(four_gpus(), assignment, 3, "nodeb");
  EXPECT_EQ(visible(last), "GPU-2,GPU-0");
  EXPECT_THAT(last.cpus, ElementsAre(0, 1));
}

TEST(GpusOfRank, ThatTheHostLacksAreAnErrorThatNamesIt) {
  EXPECT_THAT(gpus_error("0:4", 0), HasSubstr("host nodeb: the plan has 1 ranks on GPUs here, but GPU slot 4 does not "
                                              "exist; its GPUs: GPU-0, GPU-1, GPU-2, GPU-3, GPU-4 (it needs repair)"));
  EXPECT_THAT(gpus_error("0:GPU-7", 0), HasSubstr("GPU slot GPU-7 does not exist"));
  for (const std::string assignment : {"", "0", "0:", ":1", "x"}) {
    EXPECT_THAT(gpus_error(assignment, 0), HasSubstr("has no GPU for rank 0")) << assignment;
  }
  EXPECT_THAT(gpus_error("0:1", 1), HasSubstr("DTRAIN_GPUS=0:1 has no GPU for rank 1"));
}

TEST(GpusOfRank, StayAsSlurmHasBoundThem) {
  const std::vector<scheduler::ClusterSlot> one{{.index = 0, .cpus = {0}, .threads = 1, .gpu = 0, .gpu_uuid = "GPU-5"}};
  const ShareOfRank share = gpus_of_rank(one, "0:0,0:1", 1, "nodeb");
  EXPECT_EQ(visible(share), "GPU-5");
  EXPECT_THAT(share.cpus, IsEmpty());
}

// Ranks 0 and 1 here, on GPUs that are known; ranks 2 and 3 on nodeb, whose GPUs two agents share.
PlacedLaunch on_gpus() {
  PlacedLaunch plan;
  plan.host = "nodea";
  plan.request.slot_type = config::AgentSlotType::kCuda;
  plan.cluster.cluster.launcher.type = config::LauncherType::kSlurm;
  plan.cluster.agents = {{.agent = {.id = "a", .host = "nodea", .slots = 2}, .here = true},
                         {.agent = {.id = "b", .host = "nodeb", .slots = 2}},
                         {.agent = {.id = "c", .host = "nodeb", .slots = 4}}};
  plan.placement = {{"a", 2}, {"c", 2}};
  plan.ranks = {{.rank = 0, .host = "nodea", .agent = "a", .slot = 0, .gpu = rank::PlacedGpu{1, "GPU-b", "A"}},
                {.rank = 1, .host = "nodea", .agent = "a", .slot = 1, .gpu = rank::PlacedGpu{0, "", "A"}},
                {.rank = 2, .host = "nodeb", .agent = "c", .slot = 0},
                {.rank = 3, .host = "nodeb", .agent = "c", .slot = 3}};
  return plan;
}

TEST(GpuVariables, NameTheGpusOfThisHostAndThePlacesOfOthers) {
  EXPECT_EQ(gpus_variable(on_gpus()), "0:GPU-b,0:0,1:2,1:5");
  const rank::Variables here = gpu_variables(on_gpus());
  EXPECT_EQ(here.at("CUDA_VISIBLE_DEVICES"), "GPU-b,0");
  EXPECT_EQ(here.at("CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
}

TEST(SlurmGpus, AreAskedForAndVisibleToAllRanksOfANode) {
  PlacedLaunch plan = on_gpus();
  const auto line = [&] { return join(srun_arguments(plan, {"trial"}), " "); };
  const auto script = [&] {
    return batch_script(plan, {.dtrain = "/bin/dtrain", .experiment = "/e", .run_dir = "/r"});
  };
  EXPECT_THAT(line(), HasSubstr("--gpu-bind=none"));
  EXPECT_THAT(script(), HasSubstr("#SBATCH --gpus-per-node=2\n"));
  plan.cluster.declared = false;  // Slurm chooses the nodes
  EXPECT_THAT(script(), HasSubstr("#SBATCH --gpus-per-task=1\n"));
  plan.cluster.cluster.launcher.options = {"--gres=gpu:a100:4", "--gpu-bind=closest"};
  EXPECT_THAT(script(), Not(HasSubstr("--gpus-per")));
  EXPECT_THAT(line(), Not(HasSubstr("--gpu-bind=none")));
  plan.cluster.cluster.launcher.options.clear();
  plan.request.slot_type = config::AgentSlotType::kCpu;
  EXPECT_THAT(script() + line(), Not(HasSubstr("gpu")));
}

}  // namespace
}  // namespace dtrain::launcher
