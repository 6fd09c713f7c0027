// Keys of an experiment that its trial has not asked for.
#include "loop/unread_keys.h"

#include <array>

#include <gtest/gtest.h>

#include "dtrain/train/data_section.h"

namespace dtrain::train {
namespace {

TEST(UnreadKeys, AreNamedWithWhatWasAskedForAndMissed) {
  const Json hyperparameters = {{"global_batch_size", 8}, {"lerning_rate", 5.0}, {"width", 3}};
  const Json data = {{"sampels", 10}, {"extra", 1}};
  const std::array sections{
      SectionRead{"hyperparameters", &hyperparameters, {"global_batch_size", "learning_rate", "width"}},
      SectionRead{"data", &data, {"samples"}}};
  EXPECT_EQ(
      describe_unread(sections),
      "the trial has not read hyperparameters.lerning_rate (did you mean learning_rate?), data.sampels (did you mean "
      "samples?), data.extra by the end of its first batch: a key that it does not read has no effect");
}

TEST(UnreadKeys, AKeyThatIsThereIsNotWhatWasMeant) {
  const Json given = {{"width", 3}, {"widht", 4}};
  const std::array sections{SectionRead{"hyperparameters", &given, {"width"}}};
  EXPECT_EQ(describe_unread(sections).find("did you mean"), std::string::npos);
}

TEST(UnreadKeys, NothingIsSaidWhereAllAreRead) {
  const Json given = {{"width", 3}};
  const Json none = Json::object();
  const std::array sections{SectionRead{"hyperparameters", &given, {"width", "depth"}}, SectionRead{"data", &none, {}}};
  EXPECT_EQ(describe_unread(sections), "");
}

TEST(DataSection, NotesWhatIsAskedFor) {
  const Json json = {{"folder", "/data"}, {"samples", 10}, {"names", {"a", "b"}}};
  const DataSection data(json);
  EXPECT_EQ(data.value("folder", "none"), "/data");
  EXPECT_EQ(data.value("missing", std::int64_t{3}), 3);
  EXPECT_EQ(data.at("samples").get<int>(), 10);
  EXPECT_FALSE(data.contains("other"));
  EXPECT_EQ(data.asked(), (std::set<std::string>{"folder", "missing", "samples", "other"}));
  EXPECT_FALSE(data.all_asked());
  const Json& all = data;  // as trials did before there was a class for it
  EXPECT_EQ(all.size(), 3u);
  EXPECT_TRUE(data.all_asked());
}

TEST(DataSection, NamesAMissingOrMistypedKey) {
  const Json json = {{"samples", "many"}};
  const DataSection data(json);
  const auto error_of = [](const auto& read) -> std::string {
    try {
      read();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(error_of([&] { data.at("folder"); }), "data.folder is missing");
  EXPECT_EQ(error_of([&] { data.value("samples", 3); }), "data.samples is \"many\", which the trial cannot use");
}

}  // namespace
}  // namespace dtrain::train
