// Experiment files as users of Determined have them: their checkpoint sections work unchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/config/experiment.h"
#include "temporary_file.h"

namespace dtrain::config {
namespace {

Experiment read_appended(const std::string& more) {
  const TemporaryFile file(kLeast + more);
  return read_experiment(file.path());
}

CheckpointStorage storage_of(const std::string& keys) {
  return read_appended("checkpoint_storage: {" + keys + "}\n").checkpoint_storage;
}

TEST(FilesOfDetermined, NeedNoMoreThanTheirContainersKeysLeftOut) {
  const TemporaryFile file(R"(
name: cifar10
entrypoint: ./cifar10 --augment
data: {url: https://example.com/cifar10.tar.gz}
hyperparameters:
  global_batch_size: 512
  learning_rate: 1e-4
  dropout: {type: const, val: 0.25}
resources: {slots_per_trial: 16}
records_per_epoch: 50000
searcher:
  name: single
  metric: validation_error
  max_length: {epochs: 32}
  smaller_is_better: true
min_validation_period: {epochs: 1}
min_checkpoint_period: {epochs: 2}
checkpoint_policy: all
checkpoint_storage:
  type: shared_fs
  host_path: /mnt/shared
  storage_path: checkpoints
  propagation: rprivate
  save_experiment_best: 3
  save_trial_best: 1
  save_trial_latest: 2
profiling: {enabled: true, begin_on_batch: 0, end_after_batch: null, sync_timings: true}
environment:
  environment_variables: [A=b]
max_restarts: 5
)");
  const Experiment experiment = read_experiment(file.path());
  EXPECT_EQ(experiment.resources.slots_per_trial, 16);
  EXPECT_EQ(experiment.hyperparameters.at("dropout"), 0.25);
  EXPECT_EQ(experiment.searcher.metric, "validation_error");
  EXPECT_EQ(experiment.min_checkpoint_period, (Length{LengthUnit::kEpochs, 2}));
  EXPECT_EQ(experiment.checkpoint_policy, CheckpointPolicy::kAll);
  const CheckpointStorage& storage = experiment.checkpoint_storage;
  EXPECT_EQ(storage.folder, "/mnt/shared/checkpoints");
  EXPECT_EQ(storage.save_trial_best, 3) << "a run is one trial";
  EXPECT_EQ(storage.save_trial_latest, 2);
  EXPECT_EQ(experiment.max_restarts, 5);
  EXPECT_EQ(to_json(experiment).at("checkpoint_storage").dump(),
            R"({"type":"shared_fs","host_path":"/mnt/shared","storage_path":"checkpoints","save_trial_best":3,)"
            R"("save_trial_latest":2,"save_experiment_best":3})");
}

TEST(FilesOfDetermined, StoragePathIsInsideHostPath) {
  EXPECT_EQ(storage_of("type: shared_fs, host_path: /mnt").folder, "/mnt");
  EXPECT_EQ(storage_of("type: shared_fs, host_path: /mnt/, storage_path: a/b").folder, "/mnt/a/b");
  EXPECT_EQ(storage_of("type: shared_fs, host_path: /mnt/, storage_path: /mnt/a").folder, "/mnt/a");
  EXPECT_EQ(storage_of("type: shared_fs, host_path: /mnt, storage_path: /mnt").folder, "/mnt");
  EXPECT_EQ(storage_of("type: shared_fs, host_path: /mnt, storage_path: null, propagation: null").folder, "/mnt");
  EXPECT_EQ(storage_of("type: directory, container_path: /data/a/../b").folder, "/data/b");
  EXPECT_TRUE(storage_of("type: directory, container_path: kept").folder.is_absolute());
  EXPECT_TRUE(storage_of("save_trial_best: 2").folder.empty()) << "in the run's folder";
}

TEST(FilesOfDetermined, TheNewestCheckpointStays) {
  const CheckpointStorage nothing = storage_of("save_trial_latest: 0, save_trial_best: 0, save_experiment_best: 0");
  EXPECT_EQ(nothing.save_trial_latest, 1);
  EXPECT_EQ(nothing.save_trial_best, 0);
  const CheckpointStorage unsaid = storage_of("save_trial_latest: null, save_trial_best: null");
  EXPECT_EQ(unsaid, CheckpointStorage());
  EXPECT_EQ(storage_of("save_experiment_best: 2, save_trial_best: 5").save_trial_best, 5);
}

// What is refused says what to use instead, and no error shows a secret.
TEST(FilesOfDetermined, CloudStorageIsRefusedWithoutShowingSecrets) {
  for (const std::string keys :
       {"type: s3, bucket: b, access_key: SECRET, secret_key: SECRET, endpoint_url: SECRET, prefix: p",
        "type: gcs, bucket: b, prefix: p", "type: azure, container: c, connection_string: SECRET",
        "type: azure, container: c, account_url: u, credential: SECRET",
        "type: hdfs, hdfs_url: u, hdfs_path: p, user: SECRET"}) {
    try {
      storage_of(keys);
      ADD_FAILURE() << keys;
    } catch (const ConfigErrors& errors) {
      const std::string said = errors.what();
      EXPECT_THAT(said, testing::HasSubstr("is not supported yet; mount the storage as a folder of the host"));
      EXPECT_THAT(said, testing::HasSubstr("type: shared_fs and host_path"));
      EXPECT_THAT(said, testing::Not(testing::HasSubstr("SECRET")));
      EXPECT_THAT(said, testing::Not(testing::HasSubstr("unknown key")));
    }
  }
}

}  // namespace
}  // namespace dtrain::config
