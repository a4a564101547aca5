import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.io.PrintWriter;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.generated.StormTopology;

/** One job in a LocalCluster: its input, its state in memory, and what is measured. Everything is in this one JVM. */
public final class Bench {
    static final int TASKS = 2;
    static final int POOL = 1 << 20;
    static final long STEP = 7919;
    static final int LOAD = 250_000;

    static String kind;
    static int tuples;
    static int keys;
    static int loads;
    static int start;
    static int last;
    static String[] vocabulary;
    static int[] pool;

    /** Word → how often it came, with the txid that counted it last and the count before, as Storm's rule has it. */
    static final class Value {
        final long txid;
        final long n;
        final long previous;

        Value(long txid, long n, long previous) {
            this.txid = txid;
            this.n = n;
            this.previous = previous;
        }
    }

    static final Map<String, Value> state = new ConcurrentHashMap<>();
    private static final CountDownLatch over = new CountDownLatch(1);
    private static long[] began;
    private static long[] ended;
    private static int[] finished;
    private static long beginCpu;
    private static long endCpu;

    public static void main(String[] arguments) throws Exception {
        boolean trident = arguments[0].equals("trident");
        kind = arguments[1];
        tuples = Integer.parseInt(arguments[2]);
        keys = Integer.parseInt(arguments[3]);
        loads = Integer.parseInt(arguments[4]);
        start = Integer.parseInt(arguments[5]);
        last = Integer.parseInt(arguments[6]);
        Path place = Path.of(arguments[8]);
        read(place);
        began = new long[last + 1];
        ended = new long[last + 1];
        finished = new int[last + 1];
        LocalCluster cluster = new LocalCluster();
        StormTopology topology = trident ? TridentCount.topology() : WordCount.topology();
        cluster.submitTopology("bench", config(Integer.parseInt(arguments[7])), topology);
        over.await();
        leave(place);
        report();
        System.out.flush();
        Runtime.getRuntime().halt(0); // an orderly end takes Storm half a minute
    }

    private static Config config(int pending) {
        Config config = new Config();
        config.setNumWorkers(1);
        config.setMaxSpoutPending(pending);
        config.setMessageTimeoutSecs(600);
        config.put("topology.trident.batch.emit.interval.millis", 1);
        if (tuples < 20_000) { // a queue that waits for a hundred tuples holds small transactions up
            config.put("topology.disruptor.batch.size", 1);
        }
        return config;
    }

    private static void read(Path place) throws IOException {
        List<String> lines = Files.readAllLines(place.resolve("vocabulary.txt"), StandardCharsets.UTF_8);
        vocabulary = lines.toArray(new String[0]);
        ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(place.resolve("pool.bin")));
        pool = new int[POOL];
        bytes.order(ByteOrder.LITTLE_ENDIAN).asIntBuffer().get(pool);
    }

    static int size(long txid) {
        return txid <= loads ? (int) Math.min(LOAD, keys - (txid - 1) * LOAD) : tuples;
    }

    static String word(long txid, int position) {
        if (kind.equals("total")) {
            return "";
        }
        long rank;
        if (txid <= loads) {
            rank = position + (txid - 1) * LOAD;
        } else {
            rank = pool[(int) ((txid * STEP * 131 + position) % POOL)];
        }
        return keys <= vocabulary.length ? vocabulary[(int) rank] : "k" + rank;
    }

    static void begun(long txid) {
        if (began[(int) txid] == 0) {
            began[(int) txid] = System.nanoTime();
        }
    }

    /** A committer, of `committers` that there are, is done with a transaction. */
    static synchronized void committed(long txid, int committers) {
        int number = (int) txid;
        if (++finished[number] != committers) {
            return;
        }
        ended[number] = System.nanoTime();
        if (number == start) {
            beginCpu = cpu();
        }
        if (number == last) {
            endCpu = cpu();
            over.countDown();
        }
    }

    private static long cpu() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static void leave(Path place) throws IOException {
        try (PrintWriter out = new PrintWriter(place.resolve("counts-0.tsv").toFile(), StandardCharsets.UTF_8)) {
            for (Map.Entry<String, Value> one : state.entrySet()) {
                out.print(kind.equals("total") ? "" : one.getKey() + "\t");
                out.print(one.getValue().n + "\n");
            }
        }
    }

    private static void report() {
        double[] latencies = new double[last - start];
        for (int number = start + 1; number <= last; number++) {
            latencies[number - start - 1] = (ended[number] - began[number]) / 1e6;
        }
        Arrays.sort(latencies);
        double seconds = (ended[last] - ended[start]) / 1e9;
        double middle = latencies.length == 0 ? 0 : latencies[latencies.length / 2];
        System.out.printf("RESULT %.6f %.6f %.3f%n", seconds, (endCpu - beginCpu) / 1e9, middle);
    }

    private Bench() {}
}
