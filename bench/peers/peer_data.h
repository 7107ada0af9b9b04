/* The data of a case: what a rank gives, and whether it got what it must get. Plain functions. */
#pragma once

#include "bench/peers/peer_calls.h"

/* Whether a kind is of messages; then whom this rank sends to and receives from. In a ping-pong the last of an odd
 * number of ranks has nobody, -1. */
int PeerIsMessages(PeerKind kind);
int PeerReceiver(PeerKind kind, int rank, int size);
int PeerSender(PeerKind kind, int rank, int size);

size_t PeerTypeBytes(PeerType type);
/* Elements of the larger of the call's two buffers. */
size_t PeerLargerCount(const PeerCase* work, int size);
/* Whether sums over so many ranks are exact in every type. */
int PeerExact(PeerType type, int size);
/* Writes this rank's input. */
void PeerFill(const PeerCase* work, int rank, int size, void* send, void* recv);
/* Returns how many elements of this rank's result are wrong. */
size_t PeerCountWrong(const PeerCase* work, int rank, int size, const void* recv);
