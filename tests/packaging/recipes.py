"""The recipes of CONTRIBUTING.md, each followed in a copy of the tree: a dummy is added, what the recipe touches is built, and
it runs. Each recipe touches the files of its row in the table of CONTRIBUTING.md and no others.

    recipes.py SOURCE_FOLDER BUILD_FOLDER

Compiles with the commands of the configured build and links its libraries, so that only what a recipe touches is compiled.
What needs libtorch is compiled and not run.
"""
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import unittest
import zlib
from pathlib import Path

SOURCE, BUILD = Path(sys.argv.pop(1)).resolve(), Path(sys.argv.pop(1)).resolve()
# One place for all runs, so that ccache knows the files again.
WORK = BUILD / "tests" / "recipes"
TREE = WORK / "tree"
PARTS = ["comm", "runtime", "scheduler", "python/dtrain", "tests/analysis", "tests/comm", "tests/config", "tests/data", "tests/harness", "tests/profile"]
# As cmake/Toolchain.cmake calls it.
CCACHE = [shutil.which("ccache")] if shutil.which("ccache") else []
CCACHE_SETTINGS = {"CCACHE_SLOPPINESS": "pch_defines,time_macros"}
COMMANDS = json.loads((BUILD / "compile_commands.json").read_text())
HAS_LIBTORCH = any("/test_train.dir/" in entry["command"] for entry in COMMANDS)


def read(path):
    return (SOURCE / path).read_text()


def struct_of(text, name):
    """The definition of `struct name` in C++ text."""
    return re.search(rf"^struct {name} \{{\n.*?^\}};\n", text, re.MULTILINE | re.DOTALL).group(0)


def between(text, first, last):
    """From the line that begins with `first` up to that which begins with `last`."""
    begin = text.index("\n" + first) + 1
    return text[begin:text.index("\n" + last, begin) + 1]


class Recipe:
    """Edits of the copy, with the files that they touch."""

    def __init__(self, test):
        self.touched = set()
        test.addCleanup(self.undo)

    def undo(self):
        for path in self.touched:
            (TREE / path).unlink()
            if (SOURCE / path).exists():
                shutil.copy(SOURCE / path, TREE / path)

    def write(self, path, text):
        assert not (TREE / path).exists(), path
        (TREE / path).parent.mkdir(exist_ok=True)
        (TREE / path).write_text(text)
        self.touched.add(path)

    def replace(self, path, old, new):
        text = (TREE / path).read_text()
        assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times"
        (TREE / path).write_text(text.replace(old, new))
        self.touched.add(path)


def run(arguments, **options):
    result = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    assert result.returncode == 0, f"{' '.join(map(str, arguments))}\nended with {result.returncode}:\n{result.stdout}"
    return result.stdout


def png_of_grey(rows):
    """A PNG of one column with these values."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, len(rows), 8, 0, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) +
            chunk(b"IDAT", zlib.compress(b"".join(bytes([0, value]) for value in rows))) + chunk(b"IEND", b""))


def commands_of(target):
    """The commands that compile the sources of a target of the build."""
    found = [entry for entry in COMMANDS if f"/{target}.dir/" in entry["command"]]
    assert found, f"the build in {BUILD} has no target {target}"
    return found


def compile_text(target, name, text, more=()):
    """Compiles a source with this text as one of `target`, which sees the copy's headers; the object."""
    source, made = WORK / f"{name}.cpp", WORK / f"{name}.o"
    source.write_text(text)
    words = shlex.split(commands_of(target)[0]["command"])
    for place in ("-o", "-c"):
        words[words.index(place) + 1] = str(made if place == "-o" else source)
    words = [re.sub(rf"^-I{re.escape(str(SOURCE))}/", f"-I{TREE}/", word) for word in words]
    run(CCACHE + words + list(more), cwd=BUILD, env=os.environ | CCACHE_SETTINGS)
    return made


def make_config(folder):
    """Makes the library config of the copy in `folder`, which then comes before that of the build."""
    objects = []
    for number, entry in enumerate(commands_of("config")):
        source = Path(entry["file"])
        text = source.read_text() if "Unity" in source.parts else f'#include "{source}"\n'
        for file in re.findall(r'"(/[^"]*)"', text):
            if SOURCE in Path(file).parents and BUILD not in Path(file).parents:
                text = text.replace(f'"{file}"', f'"{TREE / Path(file).relative_to(SOURCE)}"')
        objects.append(compile_text("config", f"config_{number}", text))
    folder.mkdir()
    name = os.readlink(BUILD / "lib/libdtrain_config.so")
    link("lib/" + os.readlink(BUILD / "lib" / name), objects, folder / name)
    return folder


def link(output, objects, made):
    """Links `made` as the build links `output`, of `objects` in the place of its own."""
    command = run(["ninja", "-C", str(BUILD), "-t", "commands", "-s", output]).splitlines()[-1]
    words = [word for word in shlex.split(command) if word not in (":", "&&")]
    own = [word for word in words if word.endswith(".o")]
    begin = words.index(own[0])
    words = [word for word in words if word not in own]
    words[begin:begin] = [str(one) for one in objects]
    words[words.index("-o") + 1] = str(made)
    run(words, cwd=BUILD)
    return made


class Recipes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(WORK, ignore_errors=True)
        for part in PARTS:
            shutil.copytree(SOURCE / part, TREE / part)
        cls.rows = {}
        for line in read("CONTRIBUTING.md").splitlines():
            row = re.fullmatch(r"\| \[(an? [\w ]+)\]\([^)]*\) \| (\d+) \| (.*) \|", line)
            if row:
                cls.rows[row[1]] = (int(row[2]), re.findall(r"`([\w./]+)`", row[3]))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(WORK, ignore_errors=True)

    def assertFollows(self, recipe, row, name=""):
        count, files = self.rows[row]
        self.assertEqual(sorted(recipe.touched), sorted(file.replace("NAME", name) for file in files))
        self.assertEqual(len(files), count)

    def run_program(self, program, *arguments, libraries=""):
        found = os.pathsep.join(filter(None, [str(libraries), os.environ.get("LD_LIBRARY_PATH", "")]))
        return run([program, *arguments], env=os.environ | ({"LD_LIBRARY_PATH": found} if found else {}), cwd=WORK)

    def test_a_table_row_has_at_most_three_files(self):
        self.assertEqual(set(self.rows), {"a key", "a rule", "a compressor", "a backend", "an optimizer", "a loss",
                                          "a data format", "a transform", "a command", "a system metric", "a callback event",
                                          "a finding", "a field of a record"})
        self.assertEqual({row: count for row, (count, _) in self.rows.items() if count > 3}, {})

    def test_a_key_a_backend_and_a_transform(self):
        key, backend, transform = self.add_key(), self.add_backend(), self.add_transform()
        self.assertFollows(key, "a key")
        self.assertFollows(backend, "a backend", "relay")
        self.assertFollows(transform, "a transform")
        libraries = make_config(WORK / "lib")  # once for all
        self.check_key(libraries)
        self.check_backend(libraries)
        self.check_transform(libraries)

    def add_key(self):
        header = "runtime/config/include/dtrain/config/experiment.h"
        recipe = Recipe(self)
        recipe.replace(header, "  bool smaller_is_better = true;\n", "  bool smaller_is_better = true;\n  int tries = 3;\n")
        recipe.replace(header, '  keys.boolean({"smaller_is_better"',
                       '  keys.integer({"tries", "How often to look."}, s.tries, {1, 9});\n  keys.boolean({"smaller_is_better"')
        return recipe

    def check_key(self, libraries):
        program = link("tests/config_test", [compile_text("config_test", "key_program", """
#include <cstdio>
#include "dtrain/analysis/findings.h"
#include "dtrain/config/experiment.h"
#include "dtrain/config/schema.h"
using namespace dtrain;
int main(int arguments, char** argv) try {
  if (arguments == 1) return std::puts(std::string(config::experiment_schema()).c_str()) < 0 ? 1 : 0;
  const auto experiment = config::read_experiment(argv[1]);
  std::printf("%d %s %zu", experiment.searcher.tries, config::to_json(experiment)["searcher"].dump().c_str(),
              analysis::changed_gpu_rules(experiment.profiling_rules).size());
} catch (const std::exception& error) {
  std::puts(error.what());
  return 1;
}
""")], WORK / "key_program")
        schema = json.loads(self.run_program(program, libraries=libraries))
        self.assertEqual(schema["properties"]["searcher"]["properties"]["tries"],
                         {"description": "How often to look.", "type": "integer", "minimum": 1, "maximum": 9, "default": 3})
        file = WORK / "experiment.yaml"
        text = "entrypoint: trial\nhyperparameters: {global_batch_size: 8}\nsearcher: {tries: 5, max_length: {batches: 1}}\n"
        file.write_text(text)
        self.assertRegex(self.run_program(program, file, libraries=libraries), r'^5 .*"tries":5.* 0$')
        file.write_text(text.replace("tries: 5", "tries: 10"))
        with self.assertRaisesRegex(AssertionError, "experiment.yaml:3: searcher.tries: must be a whole number from 1 to 9, not '10'"):
            self.run_program(program, file, libraries=libraries)

    def add_backend(self):
        own, backends = "comm/relay/backend.cpp", "comm/include/dtrain/comm/backend_list.h"
        recipe = Recipe(self)
        recipe.write(own, """#include <cstdio>
#include "dtrain/comm/backend_list.h"
#include "dtrain/comm/backends.h"
namespace dtrain::comm {
std::unique_ptr<Communicator> RelayBackend::make(const BackendParts& parts) const {
  std::printf("relay of %zu\\n", parts.members.size());
  return make_shm_communicator(parts.control, parts.options, parts.members);
}
BackendCheck RelayBackend::check(const std::map<std::string, std::string>&) const {
  return {"relay", true, "there is one", "", ""};
}
}  // namespace dtrain::comm
""")
        recipe.replace(backends, "// `auto` chooses the first that suits the ranks.\n", """struct RelayBackend {
  static constexpr const char* kWord = "relay";
  static constexpr const char* kText = "through a relay on the host";
  static constexpr bool kSpansHosts = false;
  static constexpr bool kNeedsMpi = false;
  std::unique_ptr<Communicator> make(const BackendParts& parts) const;
  BackendCheck check(const std::map<std::string, std::string>& variables) const;
  bool operator==(const RelayBackend&) const = default;
};
// `auto` chooses the first that suits the ranks.
""")
        recipe.replace(backends, "HierarchicalBackend, TcpBackend>;", "HierarchicalBackend, TcpBackend, RelayBackend>;")
        return recipe

    def check_backend(self, libraries):
        own = [TREE / "comm/relay/backend.cpp", *(TREE / "runtime" / name for name in (
            "rank/compare_ranks.cpp", "rank/membership.cpp", "launcher/doctor/checks.cpp"))]
        program = link("tests/run_test", [compile_text("run_test", "backend_program", "".join(
            f'#include "{file}"\n' for file in own) + """
#include <cstdio>
#include "dtrain/analysis/findings.h"
#include "dtrain/config/schema.h"
using namespace dtrain;
// Prints what doctor finds, then trains with two ranks that are threads of this process.
int main(int, char** argv) try {
  const auto experiment = config::read_experiment(argv[1]);
  std::printf("%zu rules changed\\n", analysis::changed_gpu_rules(experiment.profiling_rules).size());
  std::puts(std::string(config::experiment_schema()).c_str());
  for (const auto& finding : launcher::check_backends(false, {})) std::printf("%s: %s\\n", finding.check.c_str(), finding.text.c_str());
  const auto rank = [&](int number) {
    rank::Membership ranks;
    rank::connect_by_file(ranks, {.world = {.rank = number, .size = 2, .local_rank = number, .local_size = 2},
                                 .log = make_null_logger()}, argv[2]);
    ranks.make_communicator(rank::backend_for(experiment.communication_backend, rank::RankHosts({}, {{"a", "a"}, {"a", "a"}}), false),
                            {.log = make_null_logger()});
    float sum = 1;
    ranks.communicator().all_reduce(&sum, 1, comm::DataType::kFloat32).wait();
    std::printf("sum %g\\n", sum);
    ranks.finish();
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
  rank::backend_for(experiment.communication_backend, rank::RankHosts({}, {{"a", "a"}, {"b", "b"}}), false);
} catch (const Error& error) {
  std::printf("%s; %s\\n", error.what(), error.remedy().c_str());
}
""")], WORK / "backend_program")
        file = WORK / "backend.yaml"
        text = "entrypoint: trial\nhyperparameters: {global_batch_size: 8}\nsearcher: {max_length: {batches: 1}}\n"
        file.write_text(text + "communication: {backend: relay}\n")
        out = self.run_program(program, file, WORK / "meeting", libraries=libraries)
        self.assertIn('["auto","shm","mpi","hierarchical","tcp","relay"]', re.sub(r"\s", "", out))
        self.assertIn("\nrelay: there is one\n", out)
        self.assertEqual(out.count("\nrelay of 2"), 2, out)
        self.assertEqual(out.count("\nsum 2"), 2, out)
        self.assertIn("communication.backend is relay, but the ranks are on 2 hosts; use auto, mpi, hierarchical or tcp", out)
        file.write_text(text + "communication: {backend: smoke}\n")
        self.assertIn("communication.backend: must be auto, shm, mpi, hierarchical, tcp or relay, not 'smoke'",
                      self.run_program(program, file, WORK / "meeting", libraries=libraries))

    def add_transform(self):
        list_of_all, own = "runtime/data/include/dtrain/data/transforms.h", "runtime/data/images/view.cpp"
        flip = struct_of(read(list_of_all), "HorizontalFlip")
        recipe = Recipe(self)
        recipe.replace(list_of_all, "struct ColorJitter {", flip.replace("HorizontalFlip", "VerticalFlip")
                       .replace("horizontal_flip", "vertical_flip") + "\nstruct ColorJitter {")
        recipe.replace(list_of_all, "PadToLongest, PackTokens>;", "PadToLongest, PackTokens, VerticalFlip>;")
        recipe.replace(own, "  bool operator()(const ColorJitter&) { return false; }",
                       """  bool operator()(const ColorJitter&) { return false; }
  bool operator()(const VerticalFlip&) { return false; }""")
        recipe.replace(own, "  bool operator()(const ColorJitter& transform) {", """  bool operator()(const VerticalFlip& transform) {
    if (random_.uniform() >= transform.probability) return true;
    Image turned(image_.size());
    for (int y = 0; y < image_.height(); ++y) {
      std::memcpy(turned.row(y), image_.row(image_.height() - 1 - y), image_.stride());
    }
    image_ = std::move(turned);
    return true;
  }
  bool operator()(const ColorJitter& transform) {""")
        return recipe

    def check_transform(self, libraries):
        images = TREE / "runtime/data/images"
        program = link("tests/config_test", [compile_text("config_test", "transform_program", f"""
#include "{images}/view.cpp"
#include "{images}/pipeline.cpp"
#include "{TREE}/runtime/data/formats/tokens.cpp"
""" + """
#include <cstdio>
#include "dtrain/analysis/findings.h"
#include "dtrain/config/experiment.h"
#include "dtrain/config/schema.h"
#include "dtrain/data/formats.h"
using namespace dtrain;
// Prints the red of a picture of 1 x 3 pixels, once as it is and once by the experiment's transforms.
int main(int, char** argv) try {
  const auto experiment = config::read_experiment(argv[1]);
  std::printf("%zu rules changed\\n", analysis::changed_gpu_rules(experiment.profiling_rules).size());
  std::puts(std::string(config::experiment_schema()).c_str());
  const auto& made = experiment.model->data;
  const std::vector<std::int64_t> samples{0};
  const auto print = [&](const std::vector<data::Transform>& transforms) {
    const auto dataset = data::open_source(made.format, made.training, transforms, data::no_sharing());
    const auto builder = dataset->begin({{1, 0}, 0}, 1, [](std::size_t bytes) {
      return std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
    });
    builder->read(0, samples);
    const auto batch = builder->finish();
    for (int y = 0; y < 3; ++y) std::printf(" %d", static_cast<int>(batch.fields[0].get()[y]));
    std::puts("");
  };
  print({data::CenterCrop{.size = 3, .width = 1}});
  print(config::transforms_of(made.transforms.training));
} catch (const std::exception& error) {
  std::puts(error.what());
  return 1;
}
""", [f"-I{TREE}/runtime/data"])], WORK / "transform_program")
        folder = WORK / "pictures" / "a"
        folder.mkdir(parents=True)
        (folder / "0.png").write_bytes(png_of_grey([10, 20, 30]))
        text = """model: model.pt
loss: cross_entropy
optimizer: {kind: sgd, lr: 0.1}
hyperparameters: {global_batch_size: 1}
searcher: {max_length: {batches: 1}}
data: {format: image_folder, training: {folder: pictures, transforms: [{kind: center_crop, size: 3, width: 1}, LAST]}}
"""
        file = WORK / "transform.yaml"
        file.write_text(text.replace("LAST", "{kind: vertical_flip, probability: 1}"))
        out = self.run_program(program, file, libraries=libraries)
        self.assertIn('"mixup","cutmix","vertical_flip"]', re.sub(r"\s", "", out))
        self.assertEqual(out.splitlines()[-2:], [" 10 20 30", " 30 20 10"])
        file.write_text(text.replace("LAST", "{kind: vertical_flop}"))
        with self.assertRaisesRegex(AssertionError, "pack_tokens or vertical_flip, not 'vertical_flop'"):
            self.run_program(program, file, libraries=libraries)

    def test_a_rule(self):
        example = read("tests/analysis/rules/added_rule_test.cpp")
        judge, rule = between(example, "std::string judge_first_step", "Judgement first_step"), between(example, "Judgement first_step", "RuleSet with")
        own, rules = "runtime/analysis/findings/first_step.cpp", "runtime/analysis/findings/judge.cpp"
        recipe = Recipe(self)
        recipe.write(own, f"""#include "findings/judgement.h"
namespace dtrain::analysis::findings {{
namespace {{
{judge}
}}  // namespace
{rule}
}}  // namespace dtrain::analysis::findings
""")
        recipe.replace(rules, "fused_optimizer();\n", "fused_optimizer(), first_step();\n")
        recipe.replace(rules, "          fused_optimizer(),\n", "          fused_optimizer(), first_step(),\n")
        self.assertFollows(recipe, "a rule", "first_step")
        test = TREE / "tests/analysis/rules/added_rule_test.cpp"
        test.write_text(example.replace(judge, "").replace(rule, "}  // namespace\nJudgement first_step();\nnamespace {\n")
                        .replace("  all.push_back(first_step());\n", ""))
        made = compile_text("rules_test", "rule", "".join(f'#include "{file}"\n' for file in (TREE / rules, TREE / own, test)))
        out = self.run_program(link("tests/rules_test", [made], WORK / "rule"), "--gtest_filter=AddedRule.*")
        self.assertIn("[  PASSED  ] 4 tests.", out)

    def test_a_finding(self):
        own, findings = "runtime/analysis/findings/long_steps.cpp", "runtime/analysis/findings/judge.cpp"
        recipe = Recipe(self)
        recipe.write(own, """#include "findings/judgement.h"
namespace dtrain::analysis::findings {
std::vector<Finding> find_long_steps(const Run& run) {
  return {{.title = "steps are long", .seconds = run.evidence.loop_s / 2}};
}
}  // namespace dtrain::analysis::findings
""")
        recipe.replace(findings, "find_engine(const Run&);\n", "find_engine(const Run&), find_long_steps(const Run&);\n")
        recipe.replace(findings, "          // costs\n", '          // costs\n          {.id = "long_steps", .search = find_long_steps},\n')
        self.assertFollows(recipe, "a finding", "long_steps")
        made = compile_text("rules_test", "finding", f"""
#include "{TREE / findings}"
#include "{TREE / own}"
#include <cstdio>
using namespace dtrain::analysis;
int main() {{
  RunProfile run;
  run.ranks.emplace_back().steps.emplace_back().wall_ns = 4'000'000'000;
  const Evidence evidence(run);
  const Analysis analysis;
  std::puts(to_json(findings::search({{evidence, analysis}})).dump().c_str());
}}
""")
        found = json.loads(self.run_program(link("tests/rules_test", [made], WORK / "finding")))
        self.assertIn(("long_steps", 2, 0.5), [(one["cause"], one["seconds"], one["share"]) for one in found])

    def test_a_compressor(self):
        example = read("tests/comm/added_codec_test.cpp")
        struct, codec = struct_of(example, "EveryNth"), between(example, "class EveryNthExchange", "using WithEveryNth")
        own, codecs = "comm/compression/codecs/every_nth.cpp", "comm/include/dtrain/comm/codecs.h"
        recipe = Recipe(self)
        recipe.write(own, f'#include "compression/codec.h"\nnamespace dtrain::comm {{\n{codec}\n}}  // namespace dtrain::comm\n')
        recipe.replace(codecs, "using Compression = ", struct + "\nusing Compression = ")
        recipe.replace(codecs, "PowerSgd, TopK>;", "PowerSgd, TopK, EveryNth>;")
        self.assertFollows(recipe, "a compressor", "every_nth")
        test = TREE / "tests/comm/added_codec_test.cpp"
        test.write_text(example.replace(struct, "using comm::EveryNth;\n").replace(codec, "")
                        .replace("std::variant<comm::Fp16, comm::TopK, EveryNth>", "comm::Compression")
                        .replace('(["fp16", "topk", "every_nth"])', '(["fp16", "bf16", "int8", "powersgd", "topk", "every_nth"])'))
        made = compile_text("test_added_codec", "codec", f'#include "{TREE / own}"\n#include "{test}"\n')
        out = self.run_program(link("tests/test_added_codec", [made], WORK / "codec"))
        self.assertRegex(out, r"\[  PASSED  \] 3 tests\.")

    def test_a_data_format(self):
        example = read("tests/data/added_format_test.cpp")
        struct = struct_of(example, "TestRows")
        opening = between(example, "std::vector<float> numbers_of", "using List")
        own, formats = "runtime/data/formats/rows.cpp", "runtime/data/include/dtrain/data/formats.h"
        recipe = Recipe(self)
        recipe.write(own, "#include <charconv>\n#include <cstring>\n" + '#include "data_file.h"\n#include "dtrain/base/text.h"\n'
                     '#include "dtrain/data/formats.h"\n#include "dtrain/data/in_memory.h"\n'
                     f"namespace dtrain::data {{\n{opening}\n}}  // namespace dtrain::data\n")
        recipe.replace(formats, "using Format = ", struct + "\nusing Format = ")
        recipe.replace(formats, "ImageFolder, Shards>;", "ImageFolder, Shards, TestRows>;")
        self.assertFollows(recipe, "a data format", "rows")
        test = TREE / "tests/data/added_format_test.cpp"
        test.write_text(example.replace(struct, "").replace(opening, "")
                        .replace("std::variant<Idx, Npy, Safetensors, Tokens, Raw, Csv, ImageFolder, Shards, TestRows>", "Format"))
        made = compile_text("data_added_format_test", "format", f'#include "{TREE / own}"\n#include "{test}"\n')
        out = self.run_program(link("tests/data_added_format_test", [made], WORK / "format"))
        self.assertRegex(out, r"\[  PASSED  \] \d tests\.")

    def test_a_command(self):
        own, commands = "runtime/cli/hello.cpp", "runtime/cli/commands.h"
        recipe = Recipe(self)
        recipe.write(own, """#include <cstdio>
#include "commands.h"
namespace dtrain::cli {
void add_hello(CLI::App& app, ExitCode*) {
  CLI::App* const command = app.add_subcommand("hello", "Greets.");
  command->callback([] { std::puts("hello"); });
}
}  // namespace dtrain::cli
""")
        recipe.replace(commands, "void add_version(", "void add_hello(CLI::App& app, ExitCode* exit_code);\nvoid add_version(")
        recipe.replace(commands, "kCommands{", "kCommands{add_hello, ")
        self.assertFollows(recipe, "a command", "hello")
        made = compile_text("dtrain", "command", f'#include "{TREE / own}"\n#include "{TREE}/runtime/cli/main.cpp"\n')
        # The first definition of main() is this one; the other commands are those of the build.
        objects = [made, *(BUILD / "runtime/cli/CMakeFiles/dtrain.dir").rglob("*.cxx.o"),
                   *(BUILD / "runtime/cli/CMakeFiles/dtrain.dir").rglob("*.cpp.o"), "-Wl,--allow-multiple-definition"]
        program = link("bin/dtrain", objects, WORK / "dtrain")
        self.assertEqual(self.run_program(program, "hello"), "hello\n")
        self.assertIn("Greets.", self.run_program(program, "--help"))
        self.assertIn("hello", self.run_program(program, "completion", "bash"))

    def test_a_system_metric(self):
        header, source = "runtime/profile/monitor/system_sampler.h", "runtime/profile/monitor/system_sampler.cpp"
        recipe = Recipe(self)
        recipe.replace(header, "  std::vector<double> cpu_util_per_core;",
                       "  std::optional<double> entropy;\n  std::vector<double> cpu_util_per_core;")
        recipe.replace(header, "inline constexpr std::array kHostMetrics{\n", "inline constexpr std::array kHostMetrics{\n"
                       '    HostMetric{&SystemSample::entropy, "entropy", "bits", 1, "dtrain_entropy_bits", "What the pool has"},\n')
        recipe.replace(source, "  SystemSample sample;\n", "  SystemSample sample;\n  sample.entropy = 256.5;\n")
        self.assertFollows(recipe, "a system metric")
        agent = TREE / "runtime/profile/monitor"
        made = compile_text("profile_test", "metric", f"""
#include "{agent}/system_sampler.cpp"
#include "{agent}/format.cpp"
#include <cstdio>
int main() {{
  using namespace dtrain;
  const SystemClock clock;
  profile::SystemSampler sampler(clock);
  profile::LineBuffer line;
  profile::append_system(line, sampler.sample({{}}));
  std::fwrite(line.data(), 1, line.size(), stdout);
}}
""")
        out = self.run_program(link("tests/profile_test", [made, "-Wl,--allow-multiple-definition"], WORK / "metric"))
        self.assertEqual(json.loads(out)["entropy"], 256.5)

    def test_a_field_of_a_record(self):
        records, loop = "runtime/profile/include/dtrain/profile/records.h", "runtime/train/loop/training_loop.cpp"
        recipe = Recipe(self)
        recipe.replace(records, "  std::int64_t samples = 0;  // of this rank\n", "  std::int64_t samples = 0, tokens = 0;\n")
        recipe.replace(records, 'visit("samples", counts.samples...);',
                       'visit("samples", counts.samples...);\n    visit("tokens", counts.tokens...);')
        recipe.replace(loop, "end_step({{samples}, ", "end_step({{samples, 10 * samples}, ")
        self.assertFollows(recipe, "a field of a record")
        folder = TREE / "runtime/analysis"
        objects = [compile_text(target, f"field_{target}", "".join(f'#include "{file}"\n' for file in files)) for target, files in {
            "profile_monitor": [TREE / "runtime/profile/monitor/dump.cpp", TREE / "runtime/profile/monitor/format.cpp"],
            "analysis": [folder / "read/dump_reader.cpp", folder / "read/run_profile.cpp", folder / "export/tables.cpp",
                         folder / "summary/summary_json.cpp"]}.items()]
        objects.append(compile_text("live_test", "field", """
#include <cstdio>
#include "dtrain/analysis/export.h"
#include "dtrain/analysis/summary.h"
#include "monitor/dump.h"
using namespace dtrain;
// Prints a step, the window of two steps, the names of the columns that are new, and the totals of the rank.
int main() {
  profile::DumpWindow window;
  for (const std::int64_t samples : {3, 4}) {
    const profile::StepRecord step = {{{samples, 10 * samples}, 1, 0}, 0, 1, {}};
    if (samples == 3) std::fputs(profile::line_of("step", step).c_str(), stdout);
    window.add({.kind = profile::RecordKind::kStep, .batch = samples, .step = step});
  }
  std::string line = profile::line_of("window", window.record);
  std::fputs(line.c_str(), stdout);
  struct : analysis::DumpHandler {
    void window(const analysis::WindowLine& read, const analysis::WindowSketches&) override { rank.windows.push_back(read); }
    analysis::RankProfile rank;
  } handler;
  line.reserve(2 * line.size() + 1024);  // the reader reads beyond it
  analysis::DumpLineReader().read(line, handler);
  Json tables = Json::array();
  for (const analysis::Table& table : analysis::run_tables()) {
    for (const analysis::Column& column : table.columns) if (column.name == "tokens") tables.push_back(table.name);
  }
  std::puts(tables.dump().c_str());
  analysis::RunSummary summary;
  summary.ranks.push_back({handler.rank.counts()});
  std::puts(to_json(summary)["ranks"][0].dump().c_str());
}
"""))
        program = link("tests/live_test", [*objects, "-lsimdjson", "-Wl,--allow-multiple-definition"], WORK / "field")
        step, window, tables, rank = map(json.loads, self.run_program(program).splitlines())
        self.assertEqual([line["tokens"] for line in (step, window, rank)], [30, 70, 70])
        self.assertEqual(tables, ["ranks", "steps", "windows"])
        if HAS_LIBTORCH:
            compile_text("test_train", "loop", f'#include "{TREE / loop}"\n', ["-fsyntax-only"])

    @unittest.skipUnless(HAS_LIBTORCH, "this build has no libtorch")
    def test_an_optimizer_and_a_loss(self):
        example = read("tests/train/added_optimizer_test.cpp")
        struct = struct_of(example, "Signum")
        update = between(example, "class SignumUpdate", "std::unique_ptr<OptimizerUpdate> Signum::make_update")
        own, optimizers = "runtime/train/model/optimizers/signum.cpp", "runtime/config/include/dtrain/config/optimizers.h"
        optimizer = Recipe(self)
        optimizer.write(own, f"""#include "dtrain/config/optimizers.h"
#include "model/optimizer_update.h"
namespace dtrain::train {{
namespace {{
{update}
}}  // namespace
}}  // namespace dtrain::train
namespace dtrain {{
std::unique_ptr<train::OptimizerUpdate> Signum::make_update() const {{
  return std::make_unique<train::SignumUpdate>(*this);
}}
}}  // namespace dtrain
""")
        optimizer.replace(optimizers, "using Optimizer = ", struct.replace("<Optimizer", "<train::Optimizer")
                          .replace(" declare_lr", " config::declare_lr").replace(" declare_weight", " config::declare_weight") +
                          "\nusing Optimizer = ")
        optimizer.replace(optimizers, "Lamb, Muon>;", "Lamb, Muon, Signum>;")
        self.assertFollows(optimizer, "an optimizer", "signum")

        own_loss, losses = "runtime/train/worker/losses/mae.cpp", "runtime/config/include/dtrain/config/losses.h"
        loss = Recipe(self)
        loss.write(own_loss, """#include <ATen/ATen.h>
#include "dtrain/config/losses.h"
#include "worker/loss.h"
namespace dtrain::config {
worker::LossValues MeanAbsoluteError::evaluate(const worker::LossInput& input) const {
  if (input.output.sizes() != input.target.sizes()) worker::refuse_shapes(input, "mae needs an output of the target's shape");
  return {at::l1_loss(input.output, input.target), {}};
}
void MeanAbsoluteError::check_target(const worker::LossInput&) const {}
}  // namespace dtrain::config
""")
        loss.replace(losses, "using Loss = ", struct_of(read(losses), "MeanSquaredError").replace("MeanSquared", "MeanAbsolute")
                     .replace('"mse"', '"mae"') + "\nusing Loss = ")
        loss.replace(losses, "FromModel>;", "FromModel, MeanAbsoluteError>;")
        self.assertFollows(loss, "a loss", "mae")
        compile_text("test_train", "torch", f'#include "{TREE / own}"\n#include "{TREE / own_loss}"\n', ["-fsyntax-only"])

    @unittest.skipUnless(HAS_LIBTORCH, "this build has no libtorch")
    def test_a_callback_event(self):
        header, loop = "runtime/train/include/dtrain/train/callback.h", "runtime/train/loop/training_loop.cpp"
        recipe = Recipe(self)
        recipe.replace(header, "  virtual void on_checkpoint(", "  virtual void on_stop(const Position&) {}\n  virtual void on_checkpoint(")
        recipe.replace(header, "kCallbackEvents{\n", 'kCallbackEvents{\n    CallbackEvent<&Callback::on_stop>{"on_stop"},\n')
        recipe.replace(loop, "    session_.begin_last_save();\n", "    callbacks_.tell<&Callback::on_stop>();\n")
        recipe.replace("python/dtrain/trial.py", "    def on_checkpoint(", "    def on_stop(self, batch: int, epoch: int) -> None: ...\n"
                       "    def on_checkpoint(")
        self.assertFollows(recipe, "a callback event")
        compile_text("test_train", "event", f'#include "{TREE / loop}"\n', ["-fsyntax-only"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
