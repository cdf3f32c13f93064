/** A timer on the real clock that threads share. */
interface Peer {
    /** A timer that counts {@code id} once the delay has passed; what is returned cancels it. */
    Object schedule(long milliseconds, long id);

    /** Has {@code work} done once the delay has passed; what is returned cancels it. */
    Object call(long nanoseconds, Runnable work);

    /** Whether the timer was still to come. */
    boolean cancel(Object handle);
}
