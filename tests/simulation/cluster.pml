/* A cluster's shared log, checked exhaustively by Spin: epochs, expected sequences and barriers.
 *
 * Three nodes append to one log, each entry behind the last one that its writer has seen. An append
 * arrives at once, later, or never; its answer arrives or is lost; nodes crash and forget. Of cluster/
 * this models what member.py does: `_send`, `_settle`, `campaign`, `prove`, applying, and crashes.
 *
 * What is asserted in every state:
 *   - a commit is stored only by the node of the latest epoch entry;
 *   - a commit that was acknowledged is in the log, and one that was refused never will be;
 *   - a strong read sees every commit that was acknowledged before it began.
 *
 * What happens between two steps that only one node can see is one step here: the others cannot tell.
 * NODES, ENTRIES and WRITES bound the model; make sim runs it.
 */

#ifndef NODES
#define NODES 3
#endif
#ifndef ENTRIES
#define ENTRIES 4
#endif
#ifndef WRITES
#define WRITES 2
#endif

#define EPOCH 1
#define COMMIT 2
#define BARRIER 3

#define OK 1
#define UNSURE 2
#define OVERTAKEN 3
#define UNREACHABLE 4

#define NONE 7
#define mask(i) (1 << (i))

/* The log. stored_upto[n] has a bit for each commit among the first n entries. */
byte kind_at[ENTRIES + 1], node_at[ENTRIES + 1], epoch_at[ENTRIES + 1], write_at[ENTRIES + 1];
byte stored_upto[ENTRIES + 1];
byte last, latest_node;
byte each;

/* What callers were told, a bit for each write. */
byte writes, acknowledged, refused;

/* Appends on their way whose writers have given up waiting. One whose place was taken is gone: so each
 * of them would be the next entry, and its writer has seen all that are stored. */
typedef Flight { byte kind, write }
Flight late[NODES];

inline store(kind_, node_, write_) {
    last++;
    kind_at[last] = kind_;
    node_at[last] = node_;
    write_at[last] = write_;
    epoch_at[last] = epoch_at[last - 1];
    stored_upto[last] = stored_upto[last - 1];
    if
    :: kind_ == EPOCH ->
        epoch_at[last] = epoch_at[last] + 1;
        latest_node = node_
    :: kind_ == COMMIT ->
        assert(node_ == latest_node);
        assert(!(refused & mask(write_)));
        assert(!(stored_upto[last] & mask(write_)));
        stored_upto[last] = stored_upto[last] | mask(write_)
    :: else
    fi;
    each = 0;
    do
    :: each < NODES ->
        late[each].kind = 0;
        late[each].write = 0;
        each++
    :: else -> break
    od;
    each = 0
}

/* One append behind `position`: what becomes of it, and what its writer hears. */
inline append(kind_, write_) {
    if
    :: last == position && last < ENTRIES ->
        store(kind_, me, write_);
        if
        :: answer = OK
        :: answer = UNSURE
        fi
    :: last == position && last < ENTRIES && !late[me].kind ->
        late[me].kind = kind_;
        late[me].write = write_;
        answer = UNSURE
    :: last != position -> answer = OVERTAKEN
    :: answer = UNSURE  /* it never arrives, or too late */
    :: answer = UNREACHABLE
    fi
}

/* What is on its way arrives. */
proctype Network() {
    byte from, what, which;
    end: do
    :: atomic {
        select(from : 0 .. NODES - 1);
        if
        :: late[from].kind ->
            what = late[from].kind;
            which = late[from].write;
            store(what, from, which)
        :: else
        fi;
        from = 0;
        what = 0;
        which = 0
    }
    od
}

/* Lead no more, and begin with what is on disk. */
inline lose() {
    leads = 0;
    position = noted
}

/* A write whose outcome is certain, or said to be unknown. */
inline finish(outcome_) {
    if
    :: outcome_ == OK ->
        position++;
        assert(stored_upto[last] & mask(mine));
        if
        :: noted = position;  /* the local commit */
            acknowledged = acknowledged | mask(mine)
        :: lose()  /* it failed: the outcome is unknown, and the entry is replayed */
        fi
    :: outcome_ == UNREACHABLE || outcome_ == OVERTAKEN ->
        assert(!(stored_upto[last] & mask(mine)));
        refused = refused | mask(mine)
    :: else
    fi;
    mine = NONE;
    answer = 0
}

/* What stands behind the position, after an answer that was no answer? */
inline settle() {
    do
    :: atomic { last > position ->
        if
        :: (kind_at[position + 1] == COMMIT && node_at[position + 1] == me &&
            write_at[position + 1] == mine) -> finish(OK)
        :: (kind_at[position + 1] == BARRIER && node_at[position + 1] == me &&
            epoch_at[position + 1] == epoch_at[position]) ->
            position++;
            finish(UNREACHABLE)  /* the entry never can be stored */
        :: else ->
            lose();
            finish(OVERTAKEN)
        fi;
        break
    }
    :: atomic { answer == UNSURE ->
        append(BARRIER, 0);
        if
        :: answer == OK -> position++; finish(UNREACHABLE); break
        :: answer == UNREACHABLE -> answer = UNSURE
        :: else
        fi
    }
    :: atomic { true -> lose(); finish(UNSURE); break }
    od
}

proctype Node(byte me) {
    byte position, noted, claimed, answer;
    byte mine = NONE;
    bit leads;
    end: do
    :: atomic { leads && writes < WRITES ->
        mine = writes;
        writes++;
        append(COMMIT, mine);
        if
        :: answer == OK || answer == UNREACHABLE -> finish(answer)
        :: else
        fi
    }
    :: mine != NONE -> settle()
    :: atomic { leads && mine == NONE ->  /* a strong read */
        append(BARRIER, 0);
        if
        :: answer == OK ->
            position++;
            assert((acknowledged & ~stored_upto[position]) == 0)
        :: answer == UNREACHABLE
        :: else -> lose()
        fi;
        answer = 0
    }
    :: atomic { !leads && mine == NONE && last > position ->  /* an entry is applied */
        position++;
        if
        :: kind_at[position] == EPOCH ->
            leads = (node_at[position] == me && claimed == epoch_at[position]);
            claimed = 0;
            noted = position
        :: kind_at[position] == COMMIT -> noted = position
        :: else
        fi
    }
    :: atomic { !leads && mine == NONE && last < ENTRIES ->  /* a campaign */
        append(EPOCH, 0);
        if
        :: answer == OK ->
            position++;
            noted = position;
            leads = 1;
            claimed = 0
        :: answer == UNSURE -> claimed = epoch_at[position] + 1
        :: else
        fi;
        answer = 0
    }
    :: atomic { mine == NONE ->  /* a crash: what is on its way may still arrive */
        lose();
        claimed = 0
    }
    od
}

init {
    atomic {
        byte number = 0;
        run Network();
        do
        :: number < NODES -> run Node(number); number++
        :: else -> break
        od;
        number = 0
    }
}
