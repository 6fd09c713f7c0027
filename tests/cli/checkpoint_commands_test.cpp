// dtrain checkpoint list|describe|verify|delete|export, on a run's folder with checkpoints that dtrain-saver has
// written.
#include <cstring>

#include <gmock/gmock.h>

#include "../checkpoint/checkpoint_harness.h"
#include "cli_harness.h"
#include "dtrain/data/safetensors.h"

namespace dtrain {
namespace {

using checkpoints::About;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string safetensors_file(const Json& header, const std::string& data) {
  const std::string text = to_line(header);
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data;
}

std::string model_file(char fill) {
  return safetensors_file({{"__metadata__", {{"format", "pt"}, {"tied.head.weight", "embedding.weight"}}},
                           {"embedding.weight", {{"dtype", "F32"}, {"shape", {2, 3}}, {"data_offsets", {0, 24}}}},
                           {"norm.bias", {{"dtype", "BF16"}, {"shape", {4}}, {"data_offsets", {24, 32}}}}},
                          std::string(24, fill) + std::string(8, 'b'));
}

class CheckpointCommands : public testing::Test {
 protected:
  CheckpointCommands() {
    write_file_atomic(make("run") / "experiment.yaml", "name: test\n");
    const std::vector<double> losses{0.5, 0.25, 0.75};
    for (int i = 0; i < 3; ++i) save(10 * (i + 1), losses[static_cast<std::size_t>(i)], static_cast<char>('x' + i));
  }

  fs::path make(const std::string& name) {
    fs::create_directory(run_.folder() / name);
    return run_.folder() / name;
  }
  fs::path storage() const { return run_.folder() / "run" / "checkpoints"; }
  fs::path step(int number) const { return storage() / ("step-" + std::to_string(number)); }

  void save(int step, double loss, char fill) {
    const std::string model = model_file(fill);
    checkpoints::TestSnapshot snapshot({{checkpoints::kModelFile, model.size()}, {"rank-0000.safetensors", 0}});
    std::memcpy(snapshot.memory().data(), model.data(), model.size());
    snapshot.mark_copied(1);
    checkpoints::Saver saver(checkpoints::options_for(storage()), snapshot.memory());
    About about = checkpoints::about_step(step);
    about.time = 1.7e9 + step;
    about.epoch = 2;
    about.world_size = 3;
    about.metric = "validation_loss";
    about.metric_value = loss;
    about.run = {{"name", "test"},
                 {"model", nullptr},
                 {"global_batch_size", 64},
                 {"cpu_capability", "AVX512"},
                 {"versions", {{"dtrain", "1"}}}};
    checkpoints::SaveRequest request = checkpoints::request_for(snapshot, 1, about);
    request.files.front().weights = "";
    saver.save(request);
    const auto result = saver.wait(checkpoints::kPatience);
    ASSERT_TRUE(result);
    ASSERT_EQ(result->error, "");
  }
  void damage(int number) {
    std::fstream file(step(number) / checkpoints::kModelFile, std::ios::in | std::ios::out);
    file.seekp(-1, std::ios::end);
    file.put('!');
  }
  Result command(std::vector<std::string> words) {
    words.insert(words.begin(), "checkpoint");
    return dtrain(run_, words);
  }
  Result yes_delete(std::vector<std::string> words) {
    words.insert(words.begin(), {"delete", "./run"});
    words.emplace_back("--yes");
    return command(words);
  }

  TestRun run_;
};

TEST_F(CheckpointCommands, ListMarksBestAndLatest) {
  const Json list = Json::parse(command({"list", "./run", "--json"}).out);
  ASSERT_EQ(list.size(), 3u);
  std::vector<int> steps, best, latest;
  for (const Json& entry : list) {
    steps.push_back(entry.at("step"));
    if (entry.at("best") == true) best.push_back(entry.at("step"));
    if (entry.at("latest") == true) latest.push_back(entry.at("step"));
    EXPECT_TRUE(entry.at("damage").is_null());
    EXPECT_GT(entry.at("bytes"), 32);
    EXPECT_GT(entry.at("age_s"), 0.0);
  }
  EXPECT_THAT(steps, ElementsAre(10, 20, 30));
  EXPECT_THAT(best, ElementsAre(20));
  EXPECT_THAT(latest, ElementsAre(30));
  EXPECT_THAT(command({"list", "./run"}).out,
              AllOf(HasSubstr("2023-11-14T22:13:50Z"), HasSubstr("validation_loss = 0.25"), HasSubstr("latest"),
                    testing::ContainsRegex("\n *30 +3 +2023")));  // epochs from 1
}

TEST_F(CheckpointCommands, ListSaysWhyOneCannotBeUsed) {
  fs::remove(step(30) / checkpoints::kModelFile);
  fs::create_directory(storage() / ".partial-step-40");
  fs::create_directory(storage() / "step-50");
  const Json list = Json::parse(command({"list", "./run", "--json"}).out);
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[1].at("latest"), true);
  EXPECT_THAT(list[2].at("damage").get<std::string>(), HasSubstr("model.safetensors cannot be read: No such file"));
  EXPECT_THAT(list[3].at("damage").get<std::string>(), HasSubstr("manifest.json"));
  EXPECT_THAT(command({"list", "./run"}).out, HasSubstr("No such file"));
}

TEST_F(CheckpointCommands, ListOfARunWithoutCheckpoints) {
  write_file_atomic(make("other") / "experiment.yaml", "name: test\n");
  const Result result = command({"list", "./other"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("no checkpoints in "));
  EXPECT_EQ(command({"list", "./other", "--json"}).out, "[]\n");
}

TEST_F(CheckpointCommands, DescribeShowsFilesAndTensors) {
  const Json best = Json::parse(command({"describe", "./run", "best", "--json"}).out);
  EXPECT_EQ(best.at("step"), 20);
  ASSERT_EQ(best.at("files").size(), 3u);
  EXPECT_EQ(best.at("files")[0].at("name"), "model.safetensors");
  EXPECT_EQ(best.at("files")[0].at("tensors")[1],
            Json({{"name", "norm.bias"}, {"dtype", "BF16"}, {"shape", {4}}, {"bytes", 8}}));
  EXPECT_THAT(command({"describe", "./run"}).out,
              AllOf(HasSubstr("30 batches done, in epoch 3"), HasSubstr("2 x 3"), HasSubstr("embedding.weight"),
                    HasSubstr("\nrun              test\n"), HasSubstr("\nbatch size       64\n"),
                    HasSubstr("\ninstruction set  AVX512\n"), HasSubstr("\ngoes on          `dtrain"),
                    Not(HasSubstr("\nmodel ")), Not(HasSubstr("null"))));
  EXPECT_EQ(Json::parse(command({"describe", step(10), "--json"}).out).at("step"), 10);
  EXPECT_THAT(command({"describe", "./run", "11"}).err, HasSubstr("there are: 10, 20, 30"));
  EXPECT_EQ(command({"describe", "./run", "11"}).code, 2);
  EXPECT_EQ(command({"describe", "./run", "newest"}).code, 2);
}

TEST_F(CheckpointCommands, StepIsANumberOrTheNameOfAFolder) {
  EXPECT_EQ(Json::parse(command({"describe", "./run", "step-20", "--json"}).out).at("step"), 20);
  EXPECT_THAT(command({"verify", "./run", "step-20"}).out, HasSubstr("step 20: whole"));
  for (const char* no_step : {"step-", "step-x", "20x", "-20", "step--20"}) {
    const Result result = command({"describe", "./run", "--", no_step});
    EXPECT_EQ(result.code, 2) << no_step;
    EXPECT_THAT(result.err, AllOf(HasSubstr("names no checkpoint"), HasSubstr("there are: 10, 20, 30"))) << no_step;
  }
}

TEST_F(CheckpointCommands, NothingIsChosenFromOneCheckpoint) {
  for (const char* other : {"best", "latest", "10", "newest"}) {
    const Result result = command({"describe", step(20), other});
    EXPECT_EQ(result.code, 2) << other;
    EXPECT_THAT(result.err, AllOf(HasSubstr("step-20 is one checkpoint, so '" + std::string(other) + "' cannot be"),
                                  HasSubstr("name the run")));
    EXPECT_EQ(command({"verify", step(20), other}).code, 2) << other;
  }
  EXPECT_EQ(command({"verify", step(20), "20"}).code, 0);
  EXPECT_EQ(Json::parse(command({"describe", step(20), "step-20", "--json"}).out).at("step"), 20);
}

TEST_F(CheckpointCommands, VerifyNamesTheDamage) {
  EXPECT_EQ(command({"verify", "./run"}).code, 0);
  damage(20);
  const Result all = command({"verify", "./run"});
  EXPECT_EQ(all.code, 1);
  EXPECT_THAT(all.out, AllOf(HasSubstr("step 10: whole"), HasSubstr("step 20: DAMAGED\n  model.safetensors at byte 0 "),
                             HasSubstr("step 30: whole")));
  EXPECT_EQ(command({"verify", "./run", "10"}).code, 0);
  const Result json = command({"verify", step(20), "--json"});
  EXPECT_EQ(json.code, 1);
  EXPECT_EQ(Json::parse(json.out)[0].at("problems").size(), 1u);
}

TEST_F(CheckpointCommands, DeleteAsksAndKeepsTheLastGoodOne) {
  EXPECT_THAT(command({"delete", "./run", "10"}).err, HasSubstr("--yes"));
  EXPECT_EQ(command({"delete", "./run", "--yes"}).code, 2);
  EXPECT_EQ(yes_delete({"10", "10"}).code, 0);
  EXPECT_THAT(checkpoints::names_in(storage()), ElementsAre("step-20", "step-30"));
  damage(20);
  const Result refused = yes_delete({"30"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("without step 30 it could not go on"), HasSubstr("--force")));
  EXPECT_EQ(yes_delete({"30", "--force"}).code, 0);
  EXPECT_THAT(checkpoints::names_in(storage()), ElementsAre("step-20"));
}

TEST_F(CheckpointCommands, DeletesAllAfterABatch) {
  EXPECT_THAT(yes_delete({"--after", "30"}).err, HasSubstr("there is no checkpoint after batch 30"));
  EXPECT_THAT(command({"delete", step(10), "--after", "5", "--yes"}).err, HasSubstr("name the run instead"));
  EXPECT_EQ(yes_delete({"--after", "0"}).code, 2) << "none would be left";
  EXPECT_EQ(yes_delete({"--after", "10"}).code, 0);
  EXPECT_THAT(checkpoints::names_in(storage()), ElementsAre("step-10"));
}

TEST_F(CheckpointCommands, ListSaysWhichIsNotFinite) {
  save(40, 0.1, '\xff');
  const Json list = Json::parse(command({"list", "./run", "--json"}).out);
  EXPECT_TRUE(list[2].at("not_finite").is_null());
  EXPECT_EQ(list[3].at("not_finite"), "model.safetensors: embedding.weight");
  EXPECT_EQ(list[3].at("best"), false) << "its metric counts for nothing";
  EXPECT_THAT(command({"list", "./run"}).out, HasSubstr("latest,not finite"));
  EXPECT_THAT(command({"describe", "./run"}).out,
              HasSubstr("\nnot finite       model.safetensors: embedding.weight\n"));
}

TEST_F(CheckpointCommands, DamagedOneIsDeletedWithoutForce) {
  fs::remove(step(20) / checkpoints::kModelFile);
  EXPECT_EQ(dtrain(run_, {"checkpoint", "delete", step(20), "--yes"}).code, 0);
  EXPECT_THAT(checkpoints::names_in(storage()), ElementsAre("step-10", "step-30"));
}

TEST_F(CheckpointCommands, DeleteRefusesWhileASaverUsesTheFolder) {
  checkpoints::TestSnapshot snapshot({{checkpoints::kModelFile, 100}});
  {
    checkpoints::Saver saver(checkpoints::options_for(storage()), snapshot.memory());
    EXPECT_EQ(checkpoints::save_and_wait(saver, snapshot, 1, checkpoints::about_step(40), 1).error, "");
    const Result refused = yes_delete({"10"});
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr("a run is in progress that uses the checkpoints in "));
  }
  EXPECT_EQ(yes_delete({"10"}).code, 0);
}

TEST_F(CheckpointCommands, ExportWritesTiedTensorsUnderEachName) {
  const fs::path out = make("out") / "model.safetensors";
  const Result result = command({"export", "./run", "--best", "--output", out});
  ASSERT_EQ(result.code, 0) << result.err;
  const data::SafetensorsFile file(out);
  ASSERT_EQ(file.entries().size(), 3u);
  for (const char* name : {"embedding.weight", "head.weight"}) {
    std::string bytes(24, '\0');
    file.read(file.at(name), std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(bytes, std::string(24, 'y')) << name;
    EXPECT_THAT(file.at(name).shape, ElementsAre(2, 3));
  }
  EXPECT_EQ(file.at("norm.bias").dtype, "BF16");
  EXPECT_EQ(file.metadata().at("dtrain.step"), "20");
  EXPECT_THAT(file.metadata(), Not(testing::Contains(testing::Key("tied.head.weight"))));
}

TEST_F(CheckpointCommands, ExportChecksFirst) {
  damage(30);
  const fs::path out = run_.folder() / "model.safetensors";
  const Result result = command({"export", "./run", "-o", out});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("step-30 is damaged"), HasSubstr("checksum")));
  EXPECT_FALSE(fs::exists(out));
  EXPECT_EQ(command({"export", "./run", "--step", "step-10", "-o", out}).code, 0);
  EXPECT_EQ(command({"export", "./run", "--step", "10", "--best", "-o", out}).code, 2);
}

TEST_F(CheckpointCommands, ExportReplacesNothingUnasked) {
  const fs::path out = run_.folder() / "model.safetensors";
  write_file_atomic(out, "mine");
  const Result refused = command({"export", "./run", "-o", out});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("model.safetensors exists"), HasSubstr("--force")));
  EXPECT_EQ(read_file(out), "mine");
  EXPECT_EQ(command({"export", "./run", "-o", out, "--force"}).code, 0);
  EXPECT_EQ(data::SafetensorsFile(out).metadata().at("dtrain.step"), "30");
  EXPECT_THAT(command({"export", "./run", "-o", run_.folder(), "--force"}).err, HasSubstr("is a folder"));
  const Result elsewhere = command({"export", "./run", "-o", run_.folder() / "no" / "where.safetensors"});
  EXPECT_EQ(elsewhere.code, 2);
  EXPECT_THAT(elsewhere.err, AllOf(HasSubstr("there is no folder "), HasSubstr("where.safetensors")));
  EXPECT_FALSE(fs::exists(run_.folder() / "no"));
}

TEST_F(CheckpointCommands, ExportOfAModelOnlyAsTorchScript) {
  const Result result = command({"export", "./run", "-o", run_.folder() / "m.pt", "--model", "net.pt"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("--model has no effect with --format safetensors"));
}

}  // namespace
}  // namespace dtrain
