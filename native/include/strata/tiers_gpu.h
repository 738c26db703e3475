// A GPU's side of the tier protocol (tiers.h): what its kernels and the host share besides slots, ring and mailbox.
//
// No host runs between two replays that follow each other, so the host does not change the residency table itself: it
// appends changes to a ring in mapped memory, and the first nodes of the next replay apply what is there in stream order,
// as do nodes between layers where a step has several rows. All that came before is over then, so that a slot whose expert leaves may receive another in the same batch:
//
//   slot state   who moves it on
//   free         promote: a change with `coming` is appended -> arriving
//   arriving     the replay that takes the change copies the expert into the slot and writes the entry; the host sees
//                `applied` reach the change's number -> resident
//   resident     retire: a change with `leaving` is appended -> free; whatever is appended later finds it left
//                replace: a change with both, so that a step's changes are as many as its experts -> arriving
//   lent         lend: nothing is promoted into it until it is given back; to whoever asks it is leaving
//
// Copies of the staging ring are numbered over the life of the device, from 1; copy n lies in place (n - 1) % places until
// copy n + places begins. Until then it serves as a cache: an expert that missed a moment ago is found there, and
// promotion takes it from there instead of from RAM.
#pragma once

#include "strata/tiers.h"

namespace strata::tiers {

constexpr uint32_t kChangeRing = 8192, kChangesAtOnce = 2048;
constexpr int32_t kMaxExpertLayers = 256;
constexpr uint32_t kMostAhead = 16;  // experts fetched on a guess for one layer

// Of a step of `rows` rows, where one row has `ahead`: more rows miss more, and compute longer.
STRATA_HD uint32_t ahead_of(uint32_t ahead, int32_t rows) {
  if (ahead == 0) return 0;
  const uint32_t most = ahead + (3 * static_cast<uint32_t>(rows > 1 ? rows - 1 : 0) + 2) / 4;
  return most < kMostAhead ? most : kMostAhead;
}

// Of one slot. Experts are numbered layer * num_experts + expert; -1: none.
struct SlotChange {
  uint64_t address;
  int32_t leaving, coming;
  uint32_t slot, pad;
};

// Layers [first, first + count), whose experts a prompt chunk reads where the table said when it listed what it lacks.
struct HeldLayers {
  int32_t first, count;
};

STRATA_HD bool touches(const HeldLayers& held, int32_t number, int32_t experts) {
  const int32_t layer = number / experts - held.first;
  return number >= 0 && layer >= 0 && layer < held.count;
}

STRATA_HD bool touches(const SlotChange& change, const HeldLayers& held, int32_t experts) {
  return touches(held, change.leaving, experts) || touches(held, change.coming, experts);
}

// In mapped memory. `written` counts changes by the host, `applied` those whose copies are done.
struct ChangeRing {
  alignas(64) uint32_t written;
  alignas(64) uint32_t applied;
  uint32_t epoch;  // replays begun
  uint32_t copies;  // made by the ring, low bits: whoever waits for the link sees it move
  alignas(64) SlotChange changes[kChangeRing];
};

// What the host may set between replays; in mapped memory, read when a replay begins.
struct TierSettings {
  MissCosts costs;
  float share;         // of misses that the CPU takes; negative: by costs
  float link_ns_byte;  // at least so long a byte takes on the link; 0: no limit
  uint32_t copy_all;   // 1: the CPU takes none
  uint32_t ahead;      // most experts that are fetched for the next layer on a guess
  uint64_t limit_ns;   // of any wait
};

// Whether something pays that should: now and then one step goes the other way, and is compared with the steps before and
// after it. While what should pay is slower it is held back, and the trial is to do it.
struct Trial {
  uint64_t before, probe;  // nanoseconds of the step before the trial, and of the trial
  float slower;            // how much longer it takes with it, in shares of a step, smoothed
  uint32_t count, held;
};

constexpr uint32_t kTrialEvery = 64, kTrials = 2;  // sharing misses with the CPU, fetching on a guess
constexpr uint32_t kTrialsWanted = 8;
// Steps differ by what they miss, far more than by what is tried. So a trial counts for at most kTrialMost of a step's time, and what begins
// to be held back has been slower by kTrialMargin over many; it comes back below kTrialBack.
constexpr float kTrialMemory = 0.95f, kTrialMargin = 0.05f, kTrialBack = 0.03f, kTrialMost = 0.25f;
constexpr float kTrialGap = 4.0f;  // longer pauses: nothing ran in between

// The step numbered `epoch` begins, the one before took `ns`. Whether trial `which` does without in it.
STRATA_HD bool trial_step(Trial& t, uint32_t which, uint32_t epoch, uint64_t ns) {
  const uint32_t phase = (epoch + which * (kTrialEvery / kTrials)) % kTrialEvery;
  if (phase == 2) t.before = ns;
  if (phase == 3) t.probe = ns;
  if (phase == 4) {
    const float before = static_cast<float>(t.before), probe = static_cast<float>(t.probe), after = static_cast<float>(ns);
    const float around = 0.5f * (before + after);
    const float most = before > after ? before : after, least = before > after ? after : before;
    if (before > 0.0f && most < kTrialGap * least && probe < kTrialGap * around && around < kTrialGap * probe) {
      float slower = (t.held != 0 ? probe - around : around - probe) / (0.5f * (probe + around));
      slower = slower > kTrialMost ? kTrialMost : slower < -kTrialMost ? -kTrialMost : slower;
      t.slower = kTrialMemory * t.slower + (1.0f - kTrialMemory) * slower;
      t.held = ++t.count >= kTrialsWanted && t.slower > (t.held != 0 ? kTrialBack : kTrialMargin);
    }
  }
  return (t.held != 0) != (phase == 2);
}

constexpr uint32_t kMostUsed = 1024;  // experts of a layer that a step uses

// What the last layer's step used; until it is told to the host.
struct Used {
  uint32_t count, rows, copied;
  RouteRecord records[kMostUsed];
};

// In device memory; written by one thread block at a time.
struct TierState {
  uint32_t epoch, fault;
  uint32_t taken, count;  // changes, and those of `list`
  uint64_t copies;        // of the staging ring so far
  uint32_t posts, busy;   // lists posted; whether the last was not served when the replay began
  uint32_t routed, pad;   // records written
  uint64_t link_free;     // when the link has carried what it was given
  uint64_t begun;         // when this replay did
  TierSettings settings;
  Trial trials[kTrials];
  uint64_t counts[kNumCounters];
  uint64_t copies_at[2 * kMaxExpertLayers + 1];  // `copies` when a layer begins [2 l], when it has what it lacked [2 l + 1]
  SlotChange list[kChangesAtOnce];
  Used used;
};

// Addresses, fixed when the device is made.
struct ExpertTier {
  uint32_t* entries;        // [layers * experts], the residency table
  uint64_t* staged;         // [layers * experts] the newest copy; 0: none
  uint64_t* tables;         // [layers][3][experts] where kernels read an expert's planes
  const uint64_t* sources;  // [layers][3][experts] the same in RAM, in the file's layout
  const uint64_t* offsets;  // [layers][4] of planes in a slot, and the bytes of all
  const uint32_t* classes;  // [layers] equal where the planes' formats are
  uint32_t* late;           // [experts] item + 1 of the experts that the CPU computes for the layer under way; 0: not
  uint64_t zeros;           // of a slot of zero bytes: what kernels read for those
  uint64_t ring, place_bytes;
  uint32_t places;
  int32_t layers, experts;
  TierState* state;
  ChangeRing* changes;           // mapped, as what follows
  const TierSettings* settings;
  RouteRing* routes;
  uint64_t* counts;  // [kNumCounters]
  MailboxView box;
};

}  // namespace strata::tiers
