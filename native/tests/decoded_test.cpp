// Stages of decoded chunks: rows are those of the file, chunks are decoded once, and what does not fit is refused.
#include "reads.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "solar/decoded.hpp"
#include "solar/stage.hpp"

using namespace reads;

namespace {

constexpr std::uint64_t block = Stage::block_nbytes;
const std::string token = "0123456789abcdef";

std::uint64_t whole(std::uint64_t nbytes) { return (nbytes + block - 1) / block * block; }

// The places of chunks, for the Source and for what its stage keeps.
struct Places {
  std::vector<std::uint64_t> begin, offset, stored, source_offset, source_nbytes;
  std::vector<std::uint32_t> mask, source_mask;
  std::vector<std::int32_t> form;
};

bool all_filtered(const Source& source) {
  return !source.chunk_offset.empty() && std::all_of(source.forms.begin(), source.forms.end(), [](const Form& form) {
    return form.chunk[0] != 0 && !form.pipeline.empty();
  });
}

std::uint64_t chunk_nbytes(const Source& source, const Form& form) {
  std::uint64_t nbytes = source.itemsize;
  for (const std::uint64_t n : form.chunk) nbytes *= n;
  return nbytes;
}

// An empty stage file for so many bytes.
void make_stage(const std::string& path, std::uint64_t nbytes) {
  const std::uint64_t size = whole(nbytes) + whole(whole(nbytes) / block * 4) + block;
  std::ofstream(path, std::ios::binary).write("", 0);
  REQUIRE(::truncate(path.c_str(), static_cast<off_t>(size)) == 0);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(size - block + 16));
  file << token;
}

// What a stage keeps of each file of a Source, whose chunks all have filters; and the Source that reads it.
std::shared_ptr<Source> decoded(const Source& from, const Folder& folder, bool anew) {
  auto made = std::make_shared<Source>(from);
  auto moved = std::make_shared<Places>();
  moved->source_offset.assign(from.chunk_offset.begin(), from.chunk_offset.end());
  moved->source_nbytes.assign(from.chunk_nbytes.begin(), from.chunk_nbytes.end());
  moved->source_mask.assign(from.chunk_mask.begin(), from.chunk_mask.end());
  for (std::size_t at = 0; at < from.files.size(); ++at) {
    auto file = std::make_shared<DecodedFile>();
    auto places = std::make_shared<Places>();
    for (const Form& form : from.forms) {
      const std::uint64_t nbytes = chunk_nbytes(from, form);
      file->forms.push_back({form.pipeline, whole(nbytes), form.nbytes == 0 ? nbytes : form.nbytes});
    }
    for (std::size_t part = 0; part < from.part_file.size(); ++part) {
      if (static_cast<std::size_t>(from.part_file[part]) != at) continue;
      for (auto k = static_cast<std::size_t>(from.part_chunks[part]); k < static_cast<std::size_t>(from.part_chunks[part + 1]); ++k) {
        const std::int32_t form = from.part_form[part];
        places->begin.push_back(file->nbytes);
        places->offset.push_back(from.chunk_offset[k]);
        places->stored.push_back(from.chunk_nbytes[k]);
        places->mask.push_back(from.chunk_mask[k]);
        places->form.push_back(form);
        moved->source_offset[k] = file->nbytes;
        moved->source_nbytes[k] = chunk_nbytes(from, from.forms[static_cast<std::size_t>(form)]);
        moved->source_mask[k] = 0;
        file->nbytes += file->forms[static_cast<std::size_t>(form)].nbytes;
      }
    }
    file->begin = places->begin;
    file->offset = places->offset;
    file->stored = places->stored;
    file->mask = places->mask;
    file->form = places->form;
    file->keep = places;
    file->check(block, from.files[at].was.nbytes);
    const std::string path = folder / ("stage" + std::to_string(at));
    if (anew) make_stage(path, file->nbytes);
    made->staged.push_back({std::make_shared<Stage>(path, token, file->nbytes), UINT64_MAX});
    made->decoded.push_back(std::move(file));
  }
  for (Form& form : made->forms) {
    form.pipeline = Pipeline();
    form.nbytes = 0;
  }
  made->chunk_offset = moved->source_offset;
  made->chunk_nbytes = moved->source_nbytes;
  made->chunk_mask = moved->source_mask;
  made->keep = std::make_shared<const std::pair<std::shared_ptr<const void>, std::shared_ptr<Places>>>(from.keep, moved);
  return made;
}

std::vector<std::int64_t> all_rows(const Source& source) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(source.part_first.back()));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i);
  return rows;
}

}  // namespace

TEST_CASE("a stage of decoded chunks gives the rows asked for, whatever the layout, and decodes none again") {
  for (const Backend backend : backends()) {
    unsigned tried = 0;
    for (unsigned seed = 0; tried < made::repeats(60U); ++seed) {
      CAPTURE(seed);
      const Folder folder;
      const made::Sample sample = made::random_source(folder, seed);
      if (!all_filtered(*sample.source)) continue;
      ++tried;
      std::vector<std::int64_t> rows = all_rows(*sample.source);
      std::shuffle(rows.begin(), rows.end(), std::mt19937(seed));
      const Values wanted = wanted_rows(sample.rows, sample.source->row_nbytes(), rows);
      for (int process = 0; process < 2; ++process) {
        const auto source = decoded(*sample.source, folder, process == 0);
        if (seed % 2 == 0) source->map();
        REQUIRE_NOTHROW(source->check());
        Reader reader(1 + seed % 3, 8, seed % 2 * 64, backend);
        for (int turn = 0; turn < 3; ++turn) {
          const std::uint64_t before = reader.stats().chunks_decoded;
          REQUIRE(read_rows(reader, source, rows) == wanted);
          if (process + turn > 0) CHECK(reader.stats().chunks_decoded == before);
        }
      }
    }
  }
}

TEST_CASE("without a stage, and with one that fails, each row is decoded when it is wanted") {
  const Folder folder;
  unsigned seed = 0;
  made::Sample sample = made::random_source(folder, seed);
  while (!all_filtered(*sample.source)) sample = made::random_source(folder, ++seed);
  const std::vector<std::int64_t> rows = all_rows(*sample.source);
  for (int how = 0; how < 3; ++how) {
    const auto source = decoded(*sample.source, folder, true);
    if (how == 0) {
      for (Staged& one : source->staged) one.stage = nullptr;
    }
    Reader reader(2, 8, 0, Backend::automatic);
    if (how == 2) read_rows(reader, source, rows);
    if (how > 0) {
      for (const Staged& one : source->staged) REQUIRE(::truncate(one.stage->path().c_str(), 100) == 0);
    }
    CHECK(read_rows(reader, source, rows) == sample.rows);
  }
}

TEST_CASE("threads that want the same chunks at once all get them") {
  const Folder folder;
  unsigned seed = 7;
  made::Sample sample = made::random_source(folder, seed);
  while (!all_filtered(*sample.source)) sample = made::random_source(folder, ++seed);
  const auto source = decoded(*sample.source, folder, true);
  Reader reader(4, 8, 64, Backend::automatic);
  std::vector<std::thread> threads;
  std::vector<Values> found(4);
  for (Values& one : found) {
    threads.emplace_back([&] {
      one.resize(sample.rows.size());
      const std::vector<std::int64_t> rows = all_rows(*source);
      const auto ticket = reader.submit(source, rows, one);
      reader.wait(ticket, 60s);
    });
  }
  for (std::thread& one : threads) one.join();
  for (const Values& one : found) CHECK(one == sample.rows);
}

TEST_CASE("chunks that leave their file, or lie in each other, are refused") {
  DecodedFile file;
  std::vector<std::uint64_t> begin{0, 2 * block}, offset{0, 50}, stored{50, 50};
  std::vector<std::uint32_t> mask{0, 0};
  std::vector<std::int32_t> form{0, 0};
  const auto looked = [&] {
    file.begin = begin;
    file.offset = offset;
    file.stored = stored;
    file.mask = mask;
    file.form = form;
    file.check(block, 100);
  };
  file.forms = {{Pipeline(), 2 * block, 5000}};
  file.nbytes = 4 * block;
  CHECK_NOTHROW(looked());
  CHECK(file.run(block, 4 * block, 4 * block).chunks == 2);
  CHECK(file.run(block, 2 * block, 4 * block).chunks == 1);
  CHECK(file.run(3 * block, 4 * block, 0).begin == 2 * block);
  CHECK(file.has(2 * block, 5000));
  CHECK_FALSE(file.has(2 * block, 2 * block + 1));
  const auto refused = [&](auto change, auto back) {
    change();
    CHECK_THROWS_AS(looked(), Error);
    back();
    CHECK_NOTHROW(looked());
  };
  refused([&] { begin[1] = block; }, [&] { begin[1] = 2 * block; });
  refused([&] { begin[1] = 2 * block + 1; }, [&] { begin[1] = 2 * block; });
  refused([&] { begin[1] = UINT64_MAX / block * block; }, [&] { begin[1] = 2 * block; });
  refused([&] { offset[1] = 51; }, [&] { offset[1] = 50; });
  refused([&] { stored[1] = UINT64_MAX; }, [&] { stored[1] = 50; });
  refused([&] { form[0] = 1; }, [&] { form[0] = 0; });
  refused([&] { form[0] = -1; }, [&] { form[0] = 0; });
  refused([&] { mask.pop_back(); }, [&] { mask.push_back(0); });
  refused([&] { file.forms[0].decodes = 2 * block + 1; }, [&] { file.forms[0].decodes = 5000; });
  refused([&] { file.forms[0].nbytes = 0; }, [&] { file.forms[0].nbytes = 2 * block; });
  refused([&] { file.nbytes = 3 * block; }, [&] { file.nbytes = 4 * block; });
}
