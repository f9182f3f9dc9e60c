// Orders that are functions of (seed, epoch, position): draws by weight, shuffles that run on, and mixtures.
//
// All of it is pure: arrays in, arrays out, the same numbers on every machine; nothing is drawn from a generator, so
// any position costs the same. Any number of threads may ask at a time. The caller owns the memory behind every span.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace solar::plan {

// A table for draws by weight (Walker's alias method): a slot for each sample, which is drawn itself if 32 random bits
// are below the upper half of its slot, else the sample in the lower half. 8 bytes a sample, and 8 more while it is made.
// REQUIRES: 1 to 2^31 - 1 weights, all finite and >= 0, their sum finite and > 0.
std::vector<std::uint64_t> alias_table(std::span<const double> weights);

// The samples at positions [begin, begin + out.size()) of an epoch, drawn with replacement.
void draw_by(std::span<const std::uint64_t> table, std::uint64_t seed, std::int64_t epoch, std::int64_t begin,
             std::span<std::int64_t> out);

// Turn t of a source of n samples is place t % n of its shuffle number t / n: each of its samples comes once before any
// comes twice. A shuffle is a permutation by a Feistel network on the least rectangle of n cells, and needs no memory.
// REQUIRES: sizes >= 1, begin >= 0.
void shuffled(std::uint64_t seed, std::int64_t size, std::int64_t begin, std::span<std::int64_t> out);

// The same for the turns of many sources; `firsts` is added to the place in each. REQUIRES: turns >= 0, sizes >= 1.
void shuffled_of(std::uint64_t seed, std::span<const std::int32_t> sources, std::span<const std::int64_t> turns,
                 std::span<const std::int64_t> sizes, std::span<const std::int64_t> firsts,
                 std::span<std::int64_t> out);

// A study's order: torch's shuffle by `study`, and of that each stretch of `length` places shuffled by `seed`; the last
// stretch may be shorter. All orders of a study and epoch have the same samples in each stretch.
// REQUIRES: 0 <= n < 2^31, length >= 1.
std::vector<std::int32_t> study_order(std::int64_t n, std::uint64_t study, std::uint64_t seed, std::int64_t epoch,
                                      std::int64_t length);

// Which source comes at each of `length` positions, so that after t of them each has had more than t * share - 1 and
// less than t * share + 1 samples: of those that may come, the one that must come first (Tijdeman's chairmen). Where
// two may change places within these bounds, chance decides, or every second rank would have the same sources for ever.
// REQUIRES: shares >= 1, their sum divides the length; length < 2^31.
std::vector<std::int32_t> mixed(std::span<const std::int64_t> shares, std::int64_t length, std::uint64_t seed);

// For each number the two words that numpy's SeedSequence(words..., number).generate_state(2, uint64) gives. `words` are
// in 32 bits each, the lower half of a longer one first. REQUIRES: numbers >= 0, out.size() == 2 * numbers.size().
void seeds(std::span<const std::uint32_t> words, std::span<const std::int64_t> numbers, std::span<std::uint64_t> out);

}  // namespace solar::plan
